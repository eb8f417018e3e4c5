"""A user's mistakes, each said in one sentence."""

import inspect
import os
import pydoc
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from td3_lightning.errors import RunError, UsageError, one_line
from td3_lightning.lost_peers import is_lost_peer

KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "dict": "a mapping",
    "list": "a list",
    "Sequence": "a list",
    "NoneType": "null",
}
INSTALLED = ("<", sysconfig.get_path("stdlib"), os.path.dirname(__file__))  # how files begin, but for packages'
COMPILERS = ("torch._dynamo", "torch._inductor")  # where torch.compile's own exceptions are


def sentence(error: BaseException) -> str | None:
    """What to tell the user about an exception; None if it is neither a mistake of theirs nor a fault of a run."""
    for cause in _causes(error):
        if isinstance(cause, UsageError | RunError):
            return str(cause)
        if is_lost_peer(cause):
            return "Another process of this run has ended, so this one ends too. Read the output of the other process."
        if type(cause).__module__.startswith(COMPILERS):
            lines = (line for line in str(cause).splitlines() if not line.endswith("raised:"))
            said = next(lines, type(cause).__name__)  # hints for torch's developers follow
            return f"torch.compile cannot compile the losses ({said}); leave --model.gradients compiled out."
        if isinstance(cause, MisconfigurationException) or "conditioned on metric" in str(cause):
            return f"Lightning cannot go on with these settings: {one_line(cause)}"
        if isinstance(cause, ValueError) and "Union subtypes" in str(cause):
            # jsonargparse, making an object, keeps only the text of what its constructor raised.
            said = _first(r"(?m)^  - (?!Expected a)(.*(?:\n {6}.*)*)", str(cause))
            return one_line(said) if said else None
        if (
            isinstance(cause, ModuleNotFoundError | ValueError)
            and _is_lightnings(cause)
            and not _is_in_users_code(cause)
        ):
            return f"Lightning cannot go on with these settings: {one_line(cause)}"
        if _is_out_of_memory(cause):
            return (
                f"The memory is not enough ({one_line(cause)}); lower data.batch_size or model.hidden_dims, or "
                "data.capacity where data.on_device is true."
            )
        if isinstance(cause, OSError) and cause.filename is not None and not _is_in_users_code(cause):
            return f"{cause.filename} cannot be used ({cause.strerror}); give another path, or mend this one."
    return None


def exit_code(error: BaseException) -> int:
    """Return the exit code for an exception that `sentence` explains: 1 for a fault of a run, 2 for a mistake."""
    for cause in _causes(error):
        if isinstance(cause, UsageError):
            return 2
        if isinstance(cause, RunError) or is_lost_peer(cause):
            return 1
    return 2


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was asked for, of the host or of a GPU, that is not there."""
    on_host = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return on_host or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _is_lightnings(error: BaseException) -> bool:
    """Whether Lightning raised it."""
    owners = [str(frame.f_globals.get("__name__")).split(".")[0] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return owners[-1:] == ["lightning"]


def _is_in_users_code(error: BaseException) -> bool:
    """Whether code that is not installed had a part in it: its author wants the traceback."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not all(file.startswith(INSTALLED) or "-packages" in file for file in files)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def explain(message: str, keys: Iterable[str]) -> str:
    """Turns jsonargparse's account of a mistake, often of many lines, into a sentence.

    Args:
        message: What jsonargparse says.
        keys: The settings that there are, such as "data.batch_size".
    """
    key = _first(r'Parser key "([^"]+)"', message).split(":")[0]
    owner = _first(r"class_path '?=?'([\w.]+)'", message) or _first(r"class_path='([\w.]+)'", message)
    if within := re.search(r"""class_path '[\w.]+':\s+Parser key "(\w+)":\s+(Expected a.*)""", message):
        return f"{key}: {_wrong_kind(*within.groups())}"
    if unknown := _first(r"[Oo]ption '([^']+)'(?: is)?(?: not accept|$)", message):
        return _unknown(unknown, keys, key, owner)
    if unknown := _first(r"does not accept option '([^']+)'", message):
        return _unknown(unknown, keys, key, owner)
    if unknown := _first(r"unrecognized arguments: (\S+)", message):
        if not unknown.startswith("-"):
            return f'The word "{unknown}" belongs to no flag; a setting is written as --data.batch_size 256.'
        return _unknown(unknown.split("=")[0].lstrip("-"), keys, key, owner)
    if flag := _first(r"argument (\S+): expected", message):
        return f"{flag.split('/')[-1]} came without a value; write one after it."
    if linked := _first(r'Linked "([^"]+)" must be given', message):
        return f"{linked} is taken from the environment; leave it out."
    if missing := _first(r"arguments are required: ([\w.]+(?:, [\w.]+)*)", message):
        return _missing(missing.rstrip("."), key, owner)
    if "NestedArg" in message:  # part of a value, where the value is no object
        class_first = f"--{key} td3_lightning.Linear, and its arguments after that"
        return f"{key} is one value here; write {class_first if 'Schedule' in message else f'--{key} and the value'}."
    if restriction := _first(r"Not of type \w+: (.*)", message):
        return f"{key} is out of its range: {restriction}; change it."
    if path := _first(r"Expected a dot import path string: (\S+)", message):
        if number := _first(r"Expected a <class '(int|float)'>", message):
            return f"{key} is {path}, but {KINDS[number]} is wanted, or a class such as td3_lightning.Linear; give one."
        return f'{key} names the class "{path}", but there is none; give its import path, such as package.module.Class.'
    if problem := _first(r"((?:module '[^']+' has no attribute|No module named) '[^']+')", message):
        return f"{key} names a class that cannot be imported: {problem}; mend its class_path."
    if key and "Expected a" in message:
        return _wrong_kind(key, message)
    return f"{one_line(message).rstrip('.')}; see --help."


def _unknown(name: str, keys: Iterable[str], key: str, owner: str) -> str:
    if owner:
        known = _arguments(owner)
        return f'{key}: {owner} takes no "{name}"; {_suggest(name, known) if known else "name the class that does"}.'
    return f'There is no setting "{name}"; {_suggest(name, keys)}.'


def _suggest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = get_close_matches(name, known, n=1) or [one for one in known if one.split(".")[-1] == name.split(".")[-1]]
    if close:
        return f"did you mean {close[0]}"
    return f"there are {', '.join(known)}" if len(known) < 20 else "see --help for those that there are"


def _arguments(class_path: str) -> list[str]:
    found = pydoc.locate(class_path)
    return list(inspect.signature(found).parameters) if callable(found) else []


def _missing(names: str, key: str, owner: str) -> str:
    if owner:
        return f"{key}: {owner} wants {names}, which did not come; give it under init_args."
    names = re.sub(r"\b(fit|validate|test|record|export|import)\.", "", names)
    return f"{names} is missing; give it in a configuration (--config car.yaml) or as --{names.split(',')[0]}."


def _wrong_kind(key: str, message: str) -> str:
    came = _first(r"(?:Given value|Got value): (.*)", message)
    came = _first(r"class_path='([\w.]+)'", came) or came
    kinds = re.findall(r"Expected a (?:<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[([^\]]*)\])", message)
    wanted = dict.fromkeys(KINDS.get(name, name) or f"one of {choices}" for name, choices in kinds)
    if list(wanted) == ["null"]:  # the other kinds are classes, which jsonargparse does not name
        return f"{key} is {came}, which it does not take; see --help for what it does."
    return f"{key} is {came}, but {' or '.join(wanted)} is wanted; give one."


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found.group(1) if found else ""
