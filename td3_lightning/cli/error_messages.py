"""Error messages: one sentence for each error that a user can correct."""

import errno
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
from td3_lightning.cli.commands import COMMANDS
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

# jsonargparse reports these base classes if the user named no class.
BASES = ("gymnasium.Env", "lightning.Callback", "lightning.pytorch.Callback")

# Paths of files that the user did not write begin with one of these, or contain "-packages".
INSTALLED = ("<", sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # of a write, which does not name its file


def user_message(error: BaseException) -> str | None:
    """Return the message for an exception. None if the exception requires a traceback, for example a bug."""
    for cause in _causes(error):
        if isinstance(cause, UsageError | RunError):
            return str(cause)
        if is_lost_peer(cause):
            return "Another process of this run has ended, so this one ends too. Read the output of the other process."
        if isinstance(cause, ValueError) and "Union subtypes" in str(cause):
            return _constructor_error(str(cause))
        if _is_lightnings(cause):
            return f"Lightning does not accept these settings: {one_line(cause)}"
        if _is_out_of_memory(cause):
            fix = "Reduce data.batch_size or model.hidden_dims."
            return f"Out of memory ({one_line(cause)}). {fix}"
        if isinstance(cause, OSError) and (cause.filename or cause.errno in DISK_FULL) and not _is_in_users_code(cause):
            return f"{cause.filename or 'The output'} cannot be used ({cause.strerror}). Use another path."
    return None


def _constructor_error(message: str) -> str | None:
    """Explain an exception that a constructor raised. jsonargparse keeps only its text, with those of other types."""
    missing = re.search(r"class_path '([\w.]+)':\s+(?:Requirement|No module named) '([^']+)'", message)
    if missing:
        return f"{missing[1]} must have its package installed, got no {missing[2]}. Use pip install '{missing[2]}'."
    # First those of a class that was found, then those of a value that is no class.
    text = _first(r"(?m)^  - (Problem with.*(?:\n {6}.*)*)", message)
    text = text or _first(r"(?m)^  - (?!Expected a)(.*(?:\n {6}.*)*)", message)
    return " ".join(text.split()) if text else None


def exit_code(error: BaseException) -> int:
    """Return the exit code for an exception that has a message: 1 for a failed run, 2 for an invalid setting."""
    for cause in _causes(error):
        if isinstance(cause, UsageError):
            return 2
        if isinstance(cause, RunError) or is_lost_peer(cause):
            return 1
    return 2


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether the memory of the host or of a GPU was insufficient."""
    on_host = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return on_host or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _is_lightnings(error: BaseException) -> bool:
    """Return whether Lightning refuses the settings."""
    if isinstance(error, MisconfigurationException) or "conditioned on metric" in str(error):
        return True
    if not isinstance(error, ModuleNotFoundError | ValueError) or _is_in_users_code(error):
        return False
    owners = [str(frame.f_globals.get("__name__")).split(".")[0] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return owners[-1:] == ["lightning"]


def _is_in_users_code(error: BaseException) -> bool:
    """Return whether the traceback contains code that the user wrote. Its author needs the traceback."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not all(file.startswith(INSTALLED) or "-packages" in file for file in files)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def explain_parser_error(message: str, keys: Iterable[str], words: Sequence[str] = ()) -> str:
    """Convert a message of jsonargparse, often of many lines, to one sentence.

    Args:
        message: Message of jsonargparse.
        keys: Names of all settings, for example "data.batch_size".
        words: Words of the command line.
    """
    keys = list(keys)
    text = _about_flags(message, keys, words) or _about_values(message, words)
    return text or f"{one_line(message).rstrip('.')}; see --help."


def _about_flags(message: str, keys: Sequence[str], words: Sequence[str]) -> str | None:
    """Explain a word that is not a flag, and a flag that is missing or has no value."""
    key, owner = _key(message), _owner(message)
    if within := re.search(
        r"""(?:class_path '[\w.]+'|callable class):\s+Parser key "(\w+)":\s+(Expected a .*)""", message
    ):
        return _wrong_kind(f"{key}.{within[1]}", re.sub(r"\. Got value: Namespace.*", "", within[2]), words)
    for pattern in (r"[Oo]ption '([^']+)'(?: is)?(?: not accept|$)", r"does not accept option '([^']+)'"):
        if unknown := _first(pattern, message):
            return _unknown(unknown, keys, key, owner)
    if unknown := _first(r"unrecognized arguments: (\S+)", message):
        return _stray(unknown, [*keys, "config"])
    if flag := _first(r"argument (\S+): expected", message):
        return f"{flag.split('/')[-1]} requires a value, got none. Write one after it."
    if number := re.search(r"argument (\S+): invalid int value: '(.*)'", message):
        return f"{number[1].split('/')[-1]} must be an integer, got {number[2]}. {_integer_fix(number[2])}"
    if linked := _first(r'Linked "([^"]+)" must be given', message):
        return f"{linked} is taken from the environment and cannot be set. Remove it."
    if missing := _first(r"arguments are required: ([\w.]+(?:, [\w.]+)*)", message):
        return _missing(missing.rstrip("."), key, owner)
    return None


def _about_values(message: str, words: Sequence[str]) -> str | None:
    """Explain a value of the wrong type, and a class that does not exist."""
    key = _key(message)
    if "NestedArg" in message:  # an argument of a value that is not an object
        class_first = f"--{key} td3_lightning.Linear before its arguments"
        fix = class_first if "Schedule" in message else f"--{key} with a value"
        return f"{key} must be a single value, got an argument of it. Use {fix}."
    if number := _first(r"Not of type \w+: invalid literal for int.*: '(.*)'", message):
        return f"{key} must be an integer, got {number}. {_integer_fix(number)}"
    if limits := re.search(r"Not of type \w+: (\S+) does not conform to restriction (.*)", message):
        return f"{key} must be {_range(limits[2])}, got {limits[1]}. Use another value."
    if "object has no attribute 'keys'" in message:
        got = _first(r"'init_args': (.*?)\}", message)
        return f"init_args of {key} must be a mapping, got {got}. Use the form {{name: value}}."
    if "Not of type" in message and "NoneType" in message:
        return f"{key} must be an integer, got null. Use 0, for example."
    if restriction := _first(r"Not of type \w+: (.*)", message):
        return f"{key} must be in its range: {restriction}. Use another value."
    if path := _first(r"Expected a dot import path string: (\S.*)", message):
        return _no_class(key, path, _first(r"Expected a <class '(int|float)'>", message))
    if problem := _first(r"((?:module '[^']+' has no attribute|No module named) '[^']+')", message):
        path = _first(r"class_path'?:? '([\w.]+)", message) or _first(r"Given value: (.*)", message)
        hint = suggestions.class_path(path, key) if path else ""
        return f"{key} must be a class that can be imported, got {path or 'none'} ({problem}); {hint or 'correct it.'}"
    if "codec can't decode" in message:  # the value is the name of a file
        return f"{key} must be a value or a YAML file, got a file that is not UTF-8. Use another value."
    if "Unable to load config" in message:
        given = _first(r"Unable to load config '([^']*)'", message)
        return f"{key} must be a mapping, got {given}. Use one flag for each setting, for example --{key}.NAME VALUE."
    if key and "Expected a" in message:
        return _wrong_kind(key, message, words)
    return None


def _range(restriction: str) -> str:
    """Return jsonargparse's restriction, for example "v>=0 and v<10", in words."""
    for sign, words in ((">=", "at least"), ("<=", "at most"), (">", "above"), ("<", "below")):
        restriction = restriction.replace(f"v{sign}", f"{words} ")
    return restriction


def _key(message: str) -> str:
    return _first(r'(?:Parser key "|^--)([^":]+)', message)


def _owner(message: str) -> str:
    return _first(r"class_path '?=?'([\w.]+)'", message) or _first(r"class_path='([\w.]+)'", message)


def _stray(word: str, keys: Sequence[str]) -> str:
    """Explain a word that does not belong to a flag."""
    name = word.split("=")[0].lstrip("-\u2013\u2014")  # a word processor may have inserted long dashes
    known = name in {*keys, "help"}
    if word.startswith("--") and name and not known:
        return _unknown(name, keys, "", "")
    if known or (word.startswith("-") and name and not name[0].isdigit()):
        return f"{word} must begin with two dashes; {f'did you mean --{name}?' if known else _hint(name, keys)}"
    if word.endswith((".yaml", ".yml")):
        return f"{word} does not belong to a flag; did you mean --config {word}?"
    if is_config(f"{word}.yaml"):
        return f"{word} does not belong to a flag; did you mean --config {word}.yaml?"
    if word.endswith(".ckpt"):
        return f"{word} does not belong to a flag; did you mean --ckpt_path {word}?"
    return f'"{word}" does not belong to a flag. Write a setting as --data.batch_size 256.'


def _unknown(name: str, keys: Sequence[str], key: str, owner: str) -> str:
    if owner in BASES:  # the user named no class
        form = "{class_path: NAME, init_args: {}}"
        return f'{key}: {owner} has no argument "{name}". Use the form {form}.'
    if owner:
        known = _arguments(owner)
        if name in known:
            return f"{key}.{name} has a value that {owner} does not accept; see its documentation."
        hint = suggestions.setting(name, known) if known else "use a class that has it"
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
        return f"{key}: {owner} requires {names}, got none. Set it under init_args."
    names = re.sub(rf"\b({'|'.join(COMMANDS)})\.", "", names)
    verb, it = ("are", "them") if "," in names else ("is", "it")
    flags, names = names.replace(", ", " and --"), names.replace(", ", " and ")
    return f"{names} {verb} required. Set {it} in a configuration (--config car.yaml) or with --{flags}."


def _no_class(key: str, path: str, number: str) -> str:
    hint = suggestions.class_path(path, key)
    if number:
        written = number == "int" and suggestions.integer(path)
        form = f"Use {suggestions.LINE}." if "(" in path else hint[:1].upper() + hint[1:]
        use = f"Use {written or KINDS[number]}." if written or not hint else form
        return f"{key} must be {KINDS[number]} or a class such as td3_lightning.Linear, got {path}. {use}"
    return f"{key} must be a class, got {path}; {hint or 'use its import path, for example package.module.Class.'}"


def _wrong_kind(key: str, message: str, words: Sequence[str]) -> str:
    got = _first(r"(?:Given value|Got value): (.*)", message)
    got = _first(r"class_path(?:=|': )'([\w.]+)'", got) or {"None": "null", "": "nothing"}.get(got, got)
    kinds = re.findall(r"Expected a (?:<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[([^\]]*)\])", message)
    choices = dict.fromkeys(choice.strip(" '") for _, group in kinds if group for choice in group.split(","))
    accepted = list(dict.fromkeys(KINDS.get(name, name) or f"one of {', '.join(choices)}" for name, _ in kinds))
    if not accepted or accepted == ["null"]:  # jsonargparse does not name the accepted classes
        known = suggestions.known_classes(key)
        hint = suggestions.class_path(got, key) or (f"use one of {', '.join(known)}." if 0 < len(known) < 9 else "")
        return f"{key} does not accept {got}; {hint or 'see --help for what it accepts.'}"
    fix = _fix(key, got, accepted, words)
    if suggestions.takes_schedule(key):
        fix = f"Use {accepted[0]} or {suggestions.LINE}." if fix == f"Use {accepted[0]}." else fix
        accepted.append("a schedule")
    elif suggestions.is_schedule(got):
        fix = f"{fix.rstrip('.')}; only {suggestions.with_schedule()} take a schedule."
    return f"{key} must be {' or '.join(accepted)}, got {got}. {fix}"


def _fix(key: str, got: str, accepted: Sequence[str], words: Sequence[str]) -> str:
    """Return how to write a value that was given in another form, else an accepted value or type."""
    if "a list" in accepted:
        of_classes = bool(suggestions.known_classes(key))
        listed = None if of_classes else suggestions.integers(suggestions.rest(words, key) or got)
        close = suggestions.class_path(got, key).removeprefix("did you mean ").rstrip("?")
        return f"Use {listed or (f'[{close}]' if close else 'the form [NAME]' if of_classes else 'the form [1,2]')}."
    if "an integer" in accepted and suggestions.integer(got):
        return _integer_fix(got)
    choices = [choice for kind in accepted if kind.startswith("one of ") for choice in kind[7:].split(", ")]
    if close_choices := get_close_matches(got, choices, n=1):
        return f"Did you mean {close_choices[0]}?"
    if accepted[0].startswith("one of"):
        return f"Use {choices[0]}, for example."
    return f"Use {'the form {name: value}' if accepted[0] == KINDS['dict'] else accepted[0]}."


def _integer_fix(value: str) -> str:
    return f"Use {suggestions.integer(value) or 'an integer'}."


def _first(pattern: str, text: str) -> str:
    return found[1] if (found := re.search(pattern, text)) else ""
