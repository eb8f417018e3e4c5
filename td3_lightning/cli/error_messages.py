"""A user's mistakes, each said in one sentence."""

import inspect
import pydoc
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from td3_lightning.algorithm.distributed import is_lost_peer
from td3_lightning.cli import suggestions
from td3_lightning.cli.config_files import is_config
from td3_lightning.errors import RunError, UsageError, one_line

KINDS = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "dict": "a mapping",
    "list": "a list",
    "Sequence": "a list",
    "NoneType": "null",
}


BASES = ("gymnasium.Env", "lightning.Callback", "lightning.pytorch.Callback")  # jsonargparse's, if none is named


INSTALLED = ("<", sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))  # how files begin, but for packages'


COMPILERS = ("torch._dynamo", "torch._inductor")  # where torch.compile's own exceptions are


def user_message(error: BaseException) -> str | None:
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


def explain_parser_error(message: str, keys: Iterable[str], words: Sequence[str] = ()) -> str:
    """Turn jsonargparse's account of a mistake, often of many lines, into a sentence.

    Args:
        message: What jsonargparse says.
        keys: The settings that there are, such as "data.batch_size".
        words: The command line.
    """
    keys = list(keys)
    said = _about_flags(message, keys, words) or _about_values(message, words)
    return said or f"{one_line(message).rstrip('.')}; see --help."


def _about_flags(message: str, keys: Sequence[str], words: Sequence[str]) -> str | None:
    """Explain a word that is no flag, and a flag that is missing or has no value."""
    key, owner = _key(message), _owner(message)
    if within := re.search(
        r"""(?:class_path '[\w.]+'|callable class):\s+Parser key "(\w+)":\s+(Expected a .*)""", message
    ):
        return _wrong_kind(f"{key}.{within[1]}", re.sub(r"\. Got value: Namespace.*", "", within[2]), words)
    for pattern in (
        r"[Oo]ption '([^']+)'(?: is)?(?: not accept|$)",
        r"does not accept option '([^']+)'",
    ):
        if unknown := _first(pattern, message):
            return _unknown(unknown, keys, key, owner)
    if unknown := _first(r"unrecognized arguments: (\S+)", message):
        return _stray(unknown, keys)
    if flag := _first(r"argument (\S+): expected", message):
        return f"{flag.split('/')[-1]} requires a value, got none. Write one after it."
    if linked := _first(r'Linked "([^"]+)" must be given', message):
        return f"{linked} is taken from the environment and cannot be set. Remove it."
    if missing := _first(r"arguments are required: ([\w.]+(?:, [\w.]+)*)", message):
        return _missing(missing.rstrip("."), key, owner)
    return None


def _about_values(message: str, words: Sequence[str]) -> str | None:
    """Explain a value of a wrong kind, and a class that does not exist."""
    key = _key(message)
    if "NestedArg" in message:  # part of a value, where the value is no object
        class_first = f"--{key} td3_lightning.Linear, and its arguments after that"
        return f"{key} is one value here; write {class_first if 'Schedule' in message else f'--{key} and the value'}."
    if number := _first(r"Not of type \w+: invalid literal for int.*: '(.*)'", message):
        written = suggestions.integer(number)
        return f"{key} must be an integer, got {number}.{f' Use {written}.' if written else ''}"
    if restriction := _first(r"Not of type \w+: (.*)", message):
        return f"{key} is out of its range: {restriction}. Change it."
    if path := _first(r"Expected a dot import path string: (\S+)", message):
        return _no_class(key, path, _first(r"Expected a <class '(int|float)'>", message), words)
    if problem := _first(r"((?:module '[^']+' has no attribute|No module named) '[^']+')", message):
        path = _first(r"class_path'?:? '([\w.]+)", message) or _first(r"Given value: (.*)", message)
        hint = suggestions.class_path(path, key) if path else ""
        return f"{key} must be a class that can be imported, got {path or 'none'} ({problem}); {hint or 'correct it.'}"
    if "Unable to load config" in message:
        given = _first(r"Unable to load config '([^']*)'", message)
        return f"{key} must be a mapping, got {given}. Give its settings one by one, for example --{key}.NAME VALUE."
    if key and "Expected a" in message:
        return _wrong_kind(key, message, words)
    return None


def _key(message: str) -> str:
    return _first(r'Parser key "([^"]+)"', message).split(":")[0]


def _owner(message: str) -> str:
    return _first(r"class_path '?=?'([\w.]+)'", message) or _first(r"class_path='([\w.]+)'", message)


def _stray(word: str, keys: Sequence[str]) -> str:
    """Explain a word that belongs to no flag."""
    name = word.split("=")[0].lstrip("-\u2013\u2014")  # and the dashes of a word processor
    known = name in {*keys, "config", "help"}
    if word.startswith("--") and name and not known:
        return _unknown(name, keys, "", "")
    if known or (word.startswith("-") and name and not name[0].isdigit()):
        return f"{word} must begin with two dashes; {f'did you mean --{name}?' if known else _hint(name, keys)}"
    if word.endswith((".yaml", ".yml")):
        return f"{word} belongs to no flag; did you mean --config {word}?"
    if is_config(f"{word}.yaml"):
        return f"{word} belongs to no flag; did you mean --config {word}.yaml?"
    if word.endswith(".ckpt"):
        return f"{word} belongs to no flag; did you mean --ckpt_path {word}?"
    return f'"{word}" belongs to no flag. Write a setting as --data.batch_size 256.'


def _unknown(name: str, keys: Sequence[str], key: str, owner: str) -> str:
    if owner in BASES:  # no class was named
        form = "{class_path: NAME, init_args: {}}"
        return f'{key}: {owner} has no argument "{name}"; name the class that does, as {form}.'
    if owner:
        known = _arguments(owner)
        if name in known:
            return f"{key}.{name} has a value that {owner} does not accept; see its documentation."
        hint = suggestions.setting(name, known) if known else "name the class that does"
        return f'{key}: {owner} has no argument "{name}"; {hint.rstrip(".")}{"" if hint.endswith("?") else "."}'
    return f'There is no setting "{name}"; {_hint(name, keys)}'


def _hint(name: str, keys: Sequence[str]) -> str:
    hint = suggestions.setting(name, keys)
    return hint if hint.endswith("?") else f"{hint}."


def _arguments(class_path: str) -> list[str]:
    found = pydoc.locate(class_path)
    return list(inspect.signature(found).parameters) if callable(found) else []


def _missing(names: str, key: str, owner: str) -> str:
    if owner:
        return f"{key}: {owner} requires {names}, got none. Give it under init_args."
    names = re.sub(r"\b(fit|validate|test|record|export|import)\.", "", names)
    return f"{names} is missing; give it in a configuration (--config car.yaml) or as --{names.split(',')[0]}."


def _no_class(key: str, path: str, number: str, words: Sequence[str]) -> str:
    hint = suggestions.class_path(path, key)
    if number:
        written = suggestions.integer(path) if number == "int" else None
        use = f"Use {written}." if written else hint[:1].upper() + hint[1:]
        return f"{key} must be {KINDS[number]} or a class such as td3_lightning.Linear, got {path}. {use}".rstrip()
    return f"{key} must be a class, got {path}; {hint or 'use its import path, such as package.module.Class.'}"


def _wrong_kind(key: str, message: str, words: Sequence[str]) -> str:
    came = _first(r"(?:Given value|Got value): (.*)", message)
    came = _first(r"class_path='([\w.]+)'", came) or came or "nothing"
    came = "null" if came == "None" else came
    kinds = re.findall(r"Expected a (?:<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[([^\]]*)\])", message)
    wanted = list(dict.fromkeys(KINDS.get(name, name) or f"one of {choices}" for name, choices in kinds))
    if not wanted or wanted == ["null"]:  # the other kinds are classes, which jsonargparse does not name
        known = suggestions.known_classes(key)
        if came in known:
            return f"{key} does not accept these init_args of {came}; use a mapping of its arguments."
        hint = suggestions.class_path(came, key) or (f"use one of {', '.join(known)}." if 0 < len(known) < 9 else "")
        return f"{key} does not accept {came}; {hint or 'see --help for what it accepts.'}"
    fix = _fix(key, came, wanted, words)
    return f"{key} must be {' or '.join(wanted)}, got {came}.{fix and f' {fix}'}"


def _fix(key: str, came: str, wanted: Sequence[str], words: Sequence[str]) -> str:
    """Return how to write a value that was given in another form, "" if it is not clear."""
    if "a list" in wanted:
        of_classes = bool(suggestions.known_classes(key))
        listed = None if of_classes else suggestions.integers(suggestions.rest(words, key) or came)
        close = suggestions.class_path(came, key).removeprefix("did you mean ").rstrip("?")
        return f"Use {listed or (f'[{close}]' if close else 'the form [NAME]' if of_classes else 'the form [1,2]')}."
    if "an integer" in wanted and (written := suggestions.integer(came)):
        return f"Use {written}."
    choices = [choice for group in wanted for choice in re.findall(r"'([^']+)'", group)]
    close_choices = get_close_matches(came, choices, n=1)
    return f"Did you mean {close_choices[0]}?" if close_choices else ""


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found.group(1) if found else ""
