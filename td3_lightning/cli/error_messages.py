"""Error messages: one sentence for each common mistake. A rare one keeps the library's own words."""

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec

from lightning.fabric.utilities.exceptions import MisconfigurationException

import td3_lightning
from td3_lightning.cli.commands import COMMANDS
from td3_lightning.errors import RunError, UsageError, one_line

KINDS = {"bool": "true or false", "int": "an integer", "float": "a number"}
KINDS |= {"dict": "a mapping", "Sequence": "a list", "NoneType": "null"}

DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # of a write, which does not name its file


def user_message(error: BaseException) -> str | None:
    """Return the message for an exception. None if the exception requires a traceback, for example a bug."""
    for cause in _causes(error):
        if isinstance(cause, UsageError | RunError):
            return str(cause)
        if isinstance(cause, ValueError) and "Union subtypes" in str(cause):
            # jsonargparse keeps only the text of an exception in a constructor, with the errors of other types.
            found = re.search(r"(?m)^  - (?!Expected a)(?:Problem with[^:]*: *)?(.*(?:\n {6}.*)*)", str(cause))
            return " ".join(found[1].split()) if found else one_line(cause)
        if isinstance(cause, RuntimeError) and "loading state_dict for" in str(cause):
            fix = "Remove the settings of model, or use the environment of the checkpoint."
            return f"The checkpoint must fit the networks, got an error: {one_line(cause)[:160]}... {fix}"
        if isinstance(cause, MisconfigurationException | ModuleNotFoundError) or "conditioned on metric" in str(cause):
            return f"Lightning does not accept these settings: {one_line(cause)}"
        if isinstance(cause, OSError) and (cause.filename or cause.errno in DISK_FULL):
            return f"{cause.filename or 'The output'} cannot be used ({cause.strerror}). Use another path."
    return None


def exit_code(error: BaseException) -> int:
    """Return the exit code for an exception that has a message: 1 for a failed run, 2 for an invalid setting."""
    ours = (each for each in _causes(error) if isinstance(each, UsageError | RunError))
    return 2 if isinstance(next(ours, None), UsageError | None) else 1


def explain_parser_error(message: str, keys: Iterable[str]) -> str:
    """Convert a message of jsonargparse, often of many lines, to one sentence.

    `keys` are the names of all settings, for example "data.batch_size".
    """
    key = _first(r'(?:Parser key "|^--)([^":]+)', message)
    if unknown := _first(r"[Oo]ption '([^']+)'", message):
        return _no_setting(unknown, [] if "class_path" in message else list(keys))
    if unknown := _first(r"unrecognized arguments: (\S+)", message):
        if not unknown.startswith("--"):
            return f'"{unknown}" does not belong to a flag. Write a setting as --data.batch_size 256.'
        return _no_setting(unknown.split("=")[0].removeprefix("--"), [*keys, "config"])
    if linked := _first(r'Linked "([^"]+)" must be given', message):
        return f"{linked} is taken from the environment and cannot be set. Remove it."
    if missing := _first(rf"arguments are required: (?:(?:{'|'.join(COMMANDS)})\.)?([\w.]+)", message).rstrip("."):
        if key:
            return f"{key}: requires {missing} under init_args, got none."
        return f"{missing} is required. Set it in a configuration (--config car.yaml) or with --{missing}."
    return _about_value(key, message) or f"{one_line(message).rstrip('.')}; see --help."


def _no_setting(name: str, keys: Sequence[str]) -> str:
    """Return that a setting does not exist, and one with a similar name, whose section may be missing or wrong."""
    ends = {key.split(".")[-1]: key for key in reversed(keys)}
    close = get_close_matches(name.replace("-", "_").lower().split(".")[-1], ends, n=1)
    return f'There is no setting "{name}"{_mean(ends[close[0]]) if close else "; see --help for all settings."}'


def _about_value(key: str, message: str) -> str | None:
    """Explain a value of the wrong type, or a class that does not exist."""
    got = _first(r"(?:Given value|Got value): (.*)", message).split(". Got value")[0]
    kinds = re.findall(r"Expected a (?:<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[([^\]]*)\])", message)
    texts = (KINDS.get(name, name) or f"one of {choices}".replace("'", "") for name, choices in kinds)
    accepted = list(dict.fromkeys(texts))
    if not key or not kinds:
        return None
    if accepted == ["null"]:  # or a class, which jsonargparse does not name
        name = _first(r"class_path(?:=|': )'([\w.]+)'", got) or got
        close = get_close_matches(name.split(".")[-1], td3_lightning.__all__, n=1)
        package = _first(r"^([A-Za-z_]\w*)\.[\w.]+$", name)
        if package and not close and find_spec(package) is None:
            return f"{key} does not accept {name}: Python cannot find {package}. Add its folder to PYTHONPATH."
        return f"{key} does not accept {name}{_mean(f'td3_lightning.{close[0]}') if close else '; see --help.'}"
    return f"{key} must be {' or '.join(accepted)}, got {got or 'nothing'}. Use {accepted[0]}."


def _mean(hint: str) -> str:
    return f"; did you mean {hint}?"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _first(pattern: str, text: str) -> str:
    return found[1] if (found := re.search(pattern, text)) else ""
