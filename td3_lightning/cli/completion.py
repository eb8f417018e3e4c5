"""Scripts that complete commands and flags in a shell."""

from collections.abc import Sequence
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from td3_lightning.errors import UsageError, import_extra

FLAG = "--print_completion"
SHELLS = ("bash", "zsh", "tcsh")


def print_script(parser: LightningArgumentParser, words: Sequence[str]) -> NoReturn:
    """Print the completion script for a shell, and end the process.

    Args:
        parser: Parser with all commands.
        words: Words of the command line, for example ["--print_completion", "bash"].

    Raises:
        UsageError: The shell is not supported, or the package `shtab` is missing.
    """
    shell = " ".join(words).replace("=", " ", 1).removeprefix(FLAG).strip()
    if shell not in SHELLS:
        raise UsageError(f"{FLAG} must be one of {', '.join(SHELLS)}, got {shell or 'none'}. Use {FLAG} bash.")
    import_extra("shtab", FLAG, "completion")
    print(parser.get_completion_script(f"shtab-{shell}"))
    raise SystemExit(0)
