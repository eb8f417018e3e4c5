"""Commands of td3-lightning."""

from collections.abc import Mapping, Sequence
from typing import Any

from td3_lightning.cli.suggestions import command as closest_command
from td3_lightning.errors import UsageError

# Commands that several processes can run together.
DISTRIBUTED = ("fit", "validate", "test")

# Parameters of each command's method that are not settings.
OBJECTS = {"model", "datamodule", "ckpt_path", "weights_only", "verbose"}
COMMANDS = {
    "fit": OBJECTS | {"train_dataloaders", "val_dataloaders"},
    "validate": OBJECTS | {"dataloaders"},
    "test": OBJECTS | {"dataloaders"},
    "record": OBJECTS,
    "collect": OBJECTS,
    "plot": OBJECTS,
    "robustness": OBJECTS,
    "export": OBJECTS,
    "import": OBJECTS,
}

# Commands without a Trainer: module and function. They have their own options, and are imported when they run.
OTHER_COMMANDS = {"curves": ("curves", "draw_curves"), "sweep": ("sweep", "sweep")}


def command_of(args: Sequence[str], commands: Mapping[str, Any]) -> str:
    """Return the first word, which must be a command."""
    known = [*commands, *OTHER_COMMANDS]
    if not args:
        raise UsageError(f"td3-lightning requires a command, got none. Use one of {', '.join(known)}, or --help.")
    if args[0] not in commands:
        raise UsageError(f'"{args[0]}" is not a command; {closest_command(args[0], known)}')
    return args[0]
