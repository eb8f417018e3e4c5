"""Kill and stop runs at random moments, resume them, and compare them with an uninterrupted run.

    python tests/support/crash_test.py 200 --settings 20    (make crash-test COUNT=200)

Every run is the command line in a process of its own. A kill is a SIGKILL: at a random instant of `fit`, or within
2 ms of a random one of the moments at which it opens, renames or removes a file. SIGINT, SIGTERM and SIGUSR1 come too,
a quarter as many of each unless --signals says otherwise, at random instants of the training. A run that ends is
compared to the bit with the uninterrupted one: weights, optimizers, replay, environments, generators, clocks, and the
rows of metrics.csv. --settings adds agents whose settings are drawn at random, each killed and stopped in every way.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

import conftest  # noqa: F401  # no screen, one thread
from faults import ANY_TIME, WRITING, run
from random_settings import draw, evaluation
from run_comparison import differences, rows
from td3_lightning.cli.app import main
from td3_lightning.serialization.checkpoint_file import read_checkpoint, replays_in
from td3_lightning.serialization.segment_files import FOLDER, names_in

COMMON: dict[str, Any] = {
    "model": {"hidden_dims": [8]},
    "data": {"batch_size": 4, "capacity": 300, "n_step": 3, "eval_episodes": 1, "steps_per_epoch": 40},
    "collector": {"warmup_steps": 30},
    "trainer": {"accelerator": "cpu", "max_epochs": 3, "enable_progress_bar": False, "log_every_n_steps": 10},
}
WORLDS: dict[str, dict[str, Any]] = {
    "car": {
        "env_id": "td3_lightning/CarRacing-v0",
        "env_kwargs": {"max_episode_steps": 60, "track_seed": 123, "random_starts": 0.5},
        "wrappers": [
            {"class_path": "td3_lightning.Pedals"},
            {"class_path": "td3_lightning.ActionRepeat", "init_args": {"repeat": 4}},
        ],
    },
    "LunarLander": {"env_id": "LunarLanderContinuous-v3", "env_kwargs": {"max_episode_steps": 50}, "num_envs": 2},
    "Pendulum": {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 25}},
    "TD7": {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 25}},
    "prioritized": {
        "env_id": "LunarLanderContinuous-v3",
        "env_kwargs": {"max_episode_steps": 50},
        "num_envs": 2,
        "priority_alpha": 0.4,
    },
    "assessments": {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 13}, "num_envs": 2},
}
MODELS = {
    "TD7": {"class_path": "td3_lightning.TD7", "init_args": {"hidden_dims": [8], "target_update_freq": 9}},
    "prioritized": {"hidden_dims": [8], "critic_loss": "huber"},
}
CALLBACKS = {"assessments": [evaluation("PolicyCheckpoint", early_episodes=3, late_episodes=5, switch_after=60)]}
STATUS = {ANY_TIME: -9, WRITING: -9, "SIGINT": 130, "SIGTERM": 143, "SIGUSR1": 75}
# After `fit` a signal kills the process as usual. The run must be complete then.
DEATHS = {name: getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1")}


def warm_up(folder: Path) -> None:
    """Import the modules that a run imports late, so that each forked process starts faster."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--data.env_id=Pendulum-v1", "--trainer.fast_dev_run=1", "--trainer.accelerator=cpu"]
    words += [f"--trainer.default_root_dir={folder}", "--trainer.enable_progress_bar=false"]
    with contextlib.redirect_stdout(io.StringIO()):
        main(["fit", *words, "--collector.warmup_steps=1"])


def fit(folder: Path, kind: str = "", moment: float = 0.0, delay: float = 0.0) -> int:
    """Train in a new process, from the last checkpoint if there is one; return the exit status."""
    ckpt_path = start_of(folder)
    process = os.fork()
    if process == 0:
        try:
            status, *measured = run(folder, ckpt_path, kind, moment, delay)
            Path("measured").write_text(json.dumps(measured))
            os._exit(status)
        except SystemExit as stopped:
            os._exit(int(stopped.code or 0))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def start_of(folder: Path) -> Path | None:
    """Return the checkpoint to resume, relative to the folder of a run. Delete the logs of a run without one."""
    ckpt_path = newest(folder, "last.ckpt") or newest(folder, "last-1.ckpt")
    if ckpt_path is None:
        shutil.rmtree(folder / "lightning_logs", ignore_errors=True)
    return ckpt_path and ckpt_path.relative_to(folder)


def newest(folder: Path, name: str) -> Path | None:
    """Return the newest checkpoint with a name below a folder."""
    found = sorted(folder.glob(f"lightning_logs/*/version_*/checkpoints/{name}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def compare(folder: Path, whole: Path) -> list[str]:
    """Return the differences from the uninterrupted run, and unexpected files."""
    one, other = newest(folder, "last.ckpt"), newest(whole, "last.ckpt")
    if one is None or other is None:
        return ["no last.ckpt"]
    if not (one.parents[1] / "metrics.csv").exists():  # it was killed before the first row
        return ["no metrics.csv"]
    found = [name for name in differences(one, other) if not re.search(r"Checkpoint.*(models/|path$|/dirpath$)", name)]
    found += ["metrics.csv"] * (rows(one.parents[1]) != rows(other.parents[1]))
    new = {"last-1.ckpt"} - files(other.parent)  # a very short run saves only once
    found += sorted(f"{name} is in one folder only" for name in (files(one.parent) ^ files(other.parent)) - new)
    named = {
        name for path in one.parent.glob("last*.ckpt") for name in names_in(list(replays_in(read_checkpoint(path))))
    }
    return found + [f"{path} is not referenced" for path in (one.parent / FOLDER).iterdir() if path.name not in named]


def files(folder: Path) -> set[str]:
    """Return the names of the files in a folder, which include steps and returns of the best checkpoints."""
    return {path.name for path in folder.iterdir()}


class World:
    """Run one group of settings without interruption and with faults.

    Args:
        name: Name of its folder.
        settings: Content of `run.yaml`.
        root: Folder that contains the folder of each group.
        chance: Generator of the random moments.
    """

    def __init__(self, name: str, settings: dict[str, Any], root: Path, chance: random.Random) -> None:
        self.settings, self.root, self.chance, self.runs = settings, root / name, chance, 0
        self.whole = self._new_folder("whole")
        if fit(self.whole) != 0:
            raise RuntimeError(f"{name} must finish without faults, got an error: {(self.whole / 'log').read_text()}")
        self.writes, self.seconds = json.loads((self.whole / "measured").read_text())

    def _new_folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True)
        (folder / "run.yaml").write_text(yaml.safe_dump(self.settings))
        return folder

    def _moment(self, kind: str) -> tuple[float, float]:
        """Choose a random moment for a kind of fault, and a random delay after it."""
        moment = self.chance.randint(1, self.writes) if kind == WRITING else self.chance.uniform(0, self.seconds)
        return moment, self.chance.uniform(0, 0.002)

    def run_with_faults(self, kinds: list[str]) -> Counter[str]:
        """Repeat runs until all faults have occurred, and count them and the errors."""
        counts: Counter[str] = Counter()
        while kinds:
            self.runs += 1
            folder, history = self._new_folder(f"run {self.runs}"), []
            status = -1
            while status:
                kind = kinds.pop() if kinds else ""
                history.append((kind, *self._moment(kind)))
                status = fit(folder, *history[-1])
                if status < 0 and status == -DEATHS.get(kind, 0) and not compare(folder, self.whole):
                    status = 0  # the signal arrived after the training
                counts[kind] += status != 0
                if status == 0 and kind:
                    kinds.append(kind)  # it ended before
                elif status != STATUS.get(kind, 0):
                    counts["lost"] += 1
                    print(f"{folder} ended with {status} after {history}: {(folder / 'log').read_text()[-500:]}")
                    break
            else:
                counts["runs"] += 1
                if found := compare(folder, self.whole):
                    counts["different"] += 1
                    print(f"{folder} is not the same after {history}: {found}")
        return counts


def run_all(count: int, signals: int, settings: int, seed: int, root: Path) -> dict[str, Counter[str]]:
    """Run the given numbers of kills and signals over all settings, and one of each for random settings."""
    chance, results = random.Random(seed), {}
    kinds = [ANY_TIME] * (count - count // 2) + [WRITING] * (count // 2)
    kinds += [kind for kind in STATUS if kind.isupper() for _ in range(signals)]
    chance.shuffle(kinds)
    warm_up(root)
    worlds = {
        name: {**COMMON, "data": {**COMMON["data"], **data}, "model": MODELS.get(name, COMMON["model"])}
        for name, data in WORLDS.items()
    }
    for name, own in CALLBACKS.items():
        worlds[name]["trainer"] = {**COMMON["trainer"], "callbacks": own}
    for index, (name, world) in enumerate(worlds.items()):
        if faults := kinds[index :: len(worlds)]:
            results[name] = World(name, world, root, chance).run_with_faults(faults)
    drawn = Counter[str]()
    for index in range(settings):
        world = draw(chance, worlds[chance.choice(["LunarLander", "Pendulum"])])
        drawn += World(f"settings {index}", world, root, chance).run_with_faults(
            chance.sample(list(STATUS), len(STATUS))
        )
    return {**results, **({f"{settings} draws of settings": drawn} if settings else {})}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=200, help="how many kills")
    parser.add_argument("--signals", type=int, help="how many of each signal")
    parser.add_argument("--settings", type=int, default=0, help="how many agents with random settings")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the moments")
    parser.add_argument("--folder", type=Path, help="where the runs are left, for looking at; a new one")
    options = parser.parse_args()
    signals = options.count // 4 if options.signals is None else options.signals
    with tempfile.TemporaryDirectory() as temporary:
        results = run_all(
            options.count, signals, options.settings, options.seed, (options.folder or Path(temporary)).resolve()
        )
    for name, counts in results.items():
        print(name, json.dumps(counts))
    total = sum(results.values(), Counter())
    print(json.dumps({"seed": options.seed, **total}))
    sys.exit(bool(total["lost"] or total["different"]))
