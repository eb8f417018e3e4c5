"""Script that completes commands, flags and configurations in bash and zsh."""

from collections.abc import Sequence

from td3_lightning.cli.commands import COMMANDS, OTHER_COMMANDS
from td3_lightning.cli.config_files import shipped_configs
from td3_lightning.cli.curves import make_parser as curves_parser
from td3_lightning.cli.help import FLAGS, settings_of
from td3_lightning.cli.sweep import make_parser as sweep_parser
from td3_lightning.errors import UsageError

FLAG = "--print_completion"
SHELLS = {"bash": "", "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"}
SCRIPT = """_td3_lightning() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words="{commands}"
  case "${{COMP_WORDS[COMP_CWORD-1]}}" in
    -c|--config) COMPREPLY=($(compgen -W "{configs}" -- "$word")); return ;;
  esac
  if [ "$COMP_CWORD" -gt 1 ]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o bashdefault -o default -F _td3_lightning td3-lightning"""


def print_script(words: Sequence[str]) -> None:
    """Print the completion script for a shell.

    Args:
        words: Words of the command line, for example ["--print_completion", "bash"].

    Raises:
        UsageError: The shell is not supported.
    """
    shell = " ".join(words).replace("=", " ", 1).removeprefix(FLAG).strip()
    if shell not in SHELLS:
        raise UsageError(f"{FLAG} must be one of {', '.join(SHELLS)}, got {shell or 'none'}. Use {FLAG} bash.")
    flags = {command: _flags(command) for command in COMMANDS}
    for command, parser in {"curves": curves_parser(), "sweep": sweep_parser()}.items():
        own = parser.format_usage().replace("[", " ").replace("]", " ").split()
        flags[command] = sorted({word for word in own if word.startswith("--")}) + flags["fit"] * (command == "sweep")
    cases = "\n".join(f'      {command}) words="{" ".join(words)}" ;;' for command, words in flags.items())
    commands = " ".join((*COMMANDS, *OTHER_COMMANDS, "--help", "--version", FLAG))
    print(SHELLS[shell] + SCRIPT.format(commands=commands, configs=" ".join(shipped_configs()), cases=cases))


def _flags(command: str) -> list[str]:
    """Return the flags of a command. Those of Lightning's Trainer that the help does not list are omitted."""
    settings = [settings_of(command, agent) for agent in ("td3_lightning.TD3", "td3_lightning.TD7")]
    names = dict.fromkeys(name for each in settings for section in each.values() for name in section)
    return [*(f"--{name}" for name in names), *FLAGS[1:]]
