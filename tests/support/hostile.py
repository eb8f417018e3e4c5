"""Malicious checkpoints: mutations of a valid one, and a guard that detects forbidden actions during loading."""

import copy
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

MODULE = "evilmod"  # lies in the working directory; importing it leaves the file PWNED
ROOTS = (
    *("config", "hyper_parameters", "callbacks", "loops", "clocks", "state_dict", "optimizer_states", "ReplayData"),
    *("target_noise", "stopped_early", "lr_schedulers", "format", "pytorch-lightning_version", "epoch", "global_step"),
)
WRITES = {
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "os.chmod"),
    *("shutil.rmtree", "shutil.move", "shutil.copyfile"),
}
RUNS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "webbrowser.open"}
ARGUMENTS = {"args": "touch PWNED", "shell": True, "path": "victim.txt", "folder": "outside", "func": f"{MODULE}.Evil"}
CLASSES = (
    *(f"{MODULE}.Evil", MODULE, f"{MODULE}:Evil-v0", "subprocess.Popen", "os.system", "antigravity.fly", "this.s"),
    *("td3_lightning.checkpoint.os.system", "td3_lightning.reporting.metrics_csv.MetricsFile", "torch.hub.load"),
    *("gymnasium.wrappers.RecordVideo", "gymnasium.wrappers.TransformReward", "gymnasium.make", "builtins.exec"),
    *("td3_lightning.__main__.main", "lightning.pytorch.loggers.CSVLogger", "lightning.pytorch.cli.instantiate_module"),
)
TEXTS = (
    *(*CLASSES, '["evilmod\\u002eEvil"]', "{class_path: evilmod.Evil}", f"!!python/name:{MODULE}.Evil", "evilfile"),
    *("../../victim.txt", "/etc/passwd", "~/x", "outside/a", "http://localhost:1/x", "last", "last.ckpt"),
    *(".", "..", "", "\0"),
    *("a" * 100_000, "\ud800", "Infinity", "1e3", "yes", "null", "-1", "%s" * 50, "{0.__class__}", "é\n\tx"),
    *("../../../ESCAPED_{env_steps:.0f}", "{env_steps:999999999d}", "{x.__class__}", "steps_{env_steps}"),
)


def hostile_value(rng: np.random.Generator, depth: int = 0) -> Any:
    """Return a value of an unexpected type or size."""
    leaves: list[Any] = [
        *(TEXTS[rng.integers(len(TEXTS))], TEXTS[rng.integers(len(TEXTS))], [tensor(rng)], tensor(rng)),
        [0, 1, -1, -5, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**5000][rng.integers(10)],
        [0.0, 0.5, 1.5, -1.0, float("nan"), float("inf"), -float("inf"), 1e308, 1e-320][rng.integers(9)],
        [None, True, False, (), [], {}, set(), b"", 1j][rng.integers(9)],
        [b"evil", {1, "a"}, torch.Size([2, 3]), torch.float32, torch.device("cpu"), {"a", "b"}][rng.integers(6)],
        *(specification(rng), (specification(rng),), nested(int(rng.integers(5, 200)))),
    ]
    kind = int(rng.integers(20 if depth < 3 else len(leaves)))
    if kind < len(leaves):
        return leaves[kind]
    held = [hostile_value(rng, depth + 1) for _ in range(rng.integers(4))]
    if kind < 17:
        return tuple(held) if kind < 14 else held
    keys = [
        *("class_path", "init_args", "a", "path", 1, None, 2.5, "_instantiator", "__path__"),
        TEXTS[rng.integers(30)],
    ]
    made = {keys[rng.integers(len(keys))]: value for value in held}
    return OrderedDict(made) if kind == 17 else made


def tensor(rng: np.random.Generator) -> torch.Tensor:
    """Return a tensor of an unexpected kind."""
    shapes = [(), (0,), (1,), (3,), (2, 3), (0, 4), (1, 1, 1), (5056,)]
    kinds = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float16]
    made = torch.zeros(shapes[rng.integers(len(shapes))], dtype=kinds[rng.integers(len(kinds))])
    if rng.random() < 0.2 and made.is_floating_point():
        made = made + float("nan")
    return made.expand(10**6, *made.shape) if rng.random() < 0.1 else made


def specification(rng: np.random.Generator) -> dict[str, Any]:
    """Return a harmful object description for jsonargparse."""
    some = {name: ARGUMENTS[name] for name in ARGUMENTS if rng.random() < 0.5}
    return {"class_path": CLASSES[rng.integers(len(CLASSES))], "init_args": some}


def nested(depth: int) -> Any:
    """Return nested lists and mappings."""
    made: Any = "bottom"
    for level in range(depth):
        made = [made] if level % 2 else {"a": made}
    return made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a checkpoint."""
    yield path
    if isinstance(value, dict | list | tuple):
        for key, held in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(held, (*path, key))


def mutated(checkpoint: dict[str, Any], rng: np.random.Generator) -> tuple[dict[str, Any], str]:
    """Return a copy of a checkpoint with one to three changes, and their description."""
    changed, said = copy.deepcopy(checkpoint), []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        root = ROOTS[rng.integers(len(ROOTS))] if rng.random() < 0.4 else ROOTS[rng.integers(9)]
        if root not in changed:
            continue
        found = list(places(changed[root], (root,)))
        path = found[rng.integers(len(found))]
        said.append(change(changed, path, rng))
    return changed, "; ".join(said)


def change(checkpoint: dict[str, Any], path: tuple[Any, ...], rng: np.random.Generator) -> str:
    """Replace, delete, add or convert a value in place."""
    above: Any = checkpoint
    for key in path[:-1]:
        above[key] = list(above[key]) if isinstance(above[key], tuple) else above[key]
        above = above[key]
    key, how = path[-1], rng.random()
    if how < 0.1:
        del above[key]
        return f"{path} deleted"
    if how < 0.25 and isinstance(above[key], dict):
        name = ["_instantiator", "_class_path", "encoder", "wrappers", "class_path", "dirpath", "x", 7][rng.integers(8)]
        above[key][name] = hostile_value(rng)
        return f"{(*path, name)} = {brief(above[key][name])}"
    if how < 0.3 and isinstance(above[key], list):
        above[key] = tuple(above[key])
        return f"{path} as a tuple"
    above[key] = hostile_value(rng)
    return f"{path} replaced by {brief(above[key])}"


def brief(value: Any) -> str:
    """Return a text of bounded length."""
    try:
        return f"{type(value).__name__} {str(value)[:300]}"
    except (ValueError, RecursionError):
        return type(value).__name__


class HangError(BaseException):
    """A checkpoint did not load in time. It is no `Exception`, which a library or a test may take for a refusal."""


class Guard:
    """Record imports, processes and file changes outside of the given folders while it is active."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.seen: list[str] = []
        self.active = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in RUNS:
            self.seen.append(f"{event} {arguments!r}"[:300])
        elif event == "import" and str(arguments[0]).split(".")[0] in (MODULE, "antigravity", "this"):
            self.seen.append(f"import of {arguments[0]}")
        elif event in WRITES or (event == "open" and _writes(arguments)):
            self._check(event, arguments)

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        given = arguments[: 2 if event in ("os.rename", "os.link", "shutil.move") else 1]
        for path in (os.fsdecode(each) for each in given if isinstance(each, str | bytes | os.PathLike)):
            real = os.path.realpath(path)
            if not any(real == folder or real.startswith(folder + os.sep) for folder in self.folders):
                self.seen.append(f"{event} {path}")

    @contextmanager
    def watching(self, *folders: Path, seconds: int = 30) -> Iterator[None]:
        """Record events, and raise `HangError` after this much CPU time, which does not depend on other programs."""
        self.folders = [os.path.realpath(folder) for folder in (*folders, "/dev")]
        self.seen, self.active = [], True
        before = signal.signal(signal.SIGPROF, _late)
        written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a library's first import would write it
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.dont_write_bytecode = written
            signal.signal(signal.SIGPROF, before)
            self.active = False


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))


def _late(number: int, frame: Any) -> None:
    raise HangError("it hangs")
