"""Commands of td3-lightning. This module imports no library, so that a wrong command is refused at once."""

from collections.abc import Sequence
from difflib import get_close_matches

# Parameters of each command's method that are not settings.
OBJECTS = {"model", "datamodule", "checkpoint", "ckpt_path", "weights_only", "verbose"}
COMMANDS = {
    "fit": OBJECTS | {"train_dataloaders", "val_dataloaders"},
    **dict.fromkeys(("validate", "test"), OBJECTS | {"dataloaders"}),
    **dict.fromkeys(("record", "collect", "plot", "robustness", "export", "import", "check-env"), OBJECTS),
}

# Commands without a Trainer: module and function. They have their own options, and are imported when they run.
OTHER_COMMANDS = {"curves": ("curves", "draw_curves"), "sweep": ("sweep", "sweep")}


def command_error(words: Sequence[str]) -> str | None:
    """Return the message if the first word is neither a command nor a flag of the program, else None."""
    known = [*COMMANDS, *OTHER_COMMANDS]
    if not words:
        return f"td3-lightning requires a command, got none. Use one of {', '.join(known)}, or --help."
    word = words[0].split("=")[0]
    if word in (*known, "-h", "--help", "--version"):
        return None
    close = get_close_matches(word.lower(), [*known, "--help", "--version"], n=1)
    hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}, or --help."
    return f'"{word}" is not a command; {hint}'
