"""Help, with one line for each setting of this package. `--help-trainer` lists those of Lightning's Trainer, too."""

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.cli.commands import COMMANDS, OTHER_COMMANDS
from td3_lightning.cli.precedence import parse_early_flags
from td3_lightning.cli.settings import DEFAULT, KEY, agent_class, agent_path
from td3_lightning.cli.trainer import Trainer
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData

TRAINER_FLAG = "--help-trainer"
COLUMN = 40  # of the descriptions
FROM_ENVIRONMENT = {"self", "obs_dim", "action_low", "action_high"}
RUN = {
    "config": ("FILE", "Configuration file, for example pendulum.yaml. Later ones override earlier ones."),
    "model": ("TD3", "Agent: TD3, TD7 or the import path of a subclass."),
    "name": ("the first --config", "Folder of the run in lightning_logs."),
    "seed_everything": ("0", "Seed of all random numbers."),
    "ckpt_path": ("null", "Checkpoint: a path, last (newest run of --name), or last:NAME."),
    "print_config": ("", "Print the settings and exit; =skip_default prints only the changed ones."),
}
TRAINER = {
    "max_epochs": ("100", "Epochs of the run. An epoch is data.steps_per_epoch environment steps."),
    "max_time": ("null", "Time limit, checked after each epoch, for example 00:12:00:00 for 12 hours."),
    "accelerator": ("auto", "Device: cpu, gpu or auto."),
    "devices": ("1", "Number of processes or GPUs. Each collects its own experience."),
    "callbacks": ("null", "Further callbacks, for example td3_lightning.StopWhenSolved."),
    "logger": ("null", "Further loggers, for example WandbLogger; false disables all."),
    "default_root_dir": ("null", "Folder of lightning_logs, by default the working directory."),
}
TEXTS = {
    "fit": "Train an agent, or resume a run from `--ckpt_path`.",
    "validate": "Play the evaluation episodes of training with the policy of a checkpoint.",
    "test": "Play episodes with the policy of a checkpoint, on seeds that training does not use.",
    "curves": "Draw the learning curves of several runs.",
    "sweep": "Train with several seeds, or search for settings.",
}


def program_help() -> Iterator[str]:
    """Yield the lines of `td3-lightning --help`."""
    yield "usage: td3-lightning COMMAND [--config FILE] [--SETTING VALUE]...\n"
    for command in (*COMMANDS, *OTHER_COMMANDS):
        yield f"  {command:<12}{_summary(command)}"
    yield "\nCOMMAND --help lists the settings. --version prints the version."


def command_help(command: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the help of a command, for the agent that the words name.

    Raises:
        UsageError: There is no such agent.
        argparse.ArgumentError: A flag has no value.
    """
    named = vars(parse_early_flags(words)[0])[KEY]
    yield f"usage: td3-lightning {command} [--config FILE] [--SETTING VALUE]...\n\n{_summary(command)}"
    width = shutil.get_terminal_size().columns
    for title, settings in settings_of(command, agent_path(named or DEFAULT)).items():
        yield f"\n{title}"
        for flag, (default, text) in settings.items():
            line = f"  {f'--{flag} {default}':<{COLUMN - 3}} {text}"
            yield textwrap.fill(line, max(width, 2 * COLUMN), subsequent_indent=COLUMN * " ", break_on_hyphens=False)
    yield f"\nEvery argument of Lightning's Trainer is a setting. {command} {TRAINER_FLAG} explains all settings."


def settings_of(command: str, agent: str = DEFAULT) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the settings of a command by section: the default and the first sentence of each flag without dashes.

    `agent` is an import path.
    """
    own = _arguments(getattr(Trainer, command), COMMANDS[command] | {"self", "args", "kwargs"})
    sections = {"model": agent_class(agent), "data": ReplayData, "collector": Collector, "checkpoint": BestCheckpoint}
    found = {
        name: {f"{name}.{key}": held for key, held in _arguments(kind, FROM_ENVIRONMENT).items()}
        for name, kind in sections.items()
    }
    return {"run": {**RUN, **own}, **found, "trainer": {f"trainer.{name}": held for name, held in TRAINER.items()}}


def _summary(command: str) -> str:
    return TEXTS.get(command) or str(inspect.getdoc(getattr(Trainer, command))).partition("\n")[0]


def _arguments(called: Any, without: set[str]) -> dict[str, tuple[str, str]]:
    """Return the defaults of the arguments of a function or a class, and the first sentences of their descriptions."""
    texts = dict(re.findall(r"(?m)^    (\w+): ((?:.|\n     )*)", (inspect.getdoc(called) or "").partition("Args:")[2]))
    parameters = inspect.signature(called).parameters
    return {
        name: (_default(parameter), re.split(r"(?<=\.) ", " ".join(texts.get(name, "").split()))[0])
        for name, parameter in parameters.items()
        if name not in without
    }


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "(required)"
    default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
    return str(default).lower() if isinstance(default, bool) else "null" if default is None else str(default)
