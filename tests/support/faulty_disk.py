"""Simulated disk that fails at every operation while a run writes its last checkpoints.

The disk keeps what was written apart from what would be there after a power cut: the content of a file as far as it
was synced, and the names in a folder as of its last sync, each with any part of what came later. Saves run on it
through `durable`, whose `os` it replaces. This command makes 10,000 random faults:

    PYTHONPATH=tests python tests/support/faulty_disk.py 10000
"""

import errno
import io
import os as real_os
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from td3_lightning import Replay, UsageError
from td3_lightning import atomic_files as durable
from td3_lightning.atomic_files import atomic_write
from td3_lightning.checkpointing import replay_segments as segments
from td3_lightning.checkpointing.replay_segments import CheckpointRotation, Segments
from td3_lightning.serialization.checkpoint_file import read_checkpoint, replays_in
from td3_lightning.serialization.segment_files import FOLDER, NAME, UnfitError, names_in, with_rows

ROOT = Path("/disk/run")


class PowerCut(BaseException):
    """Simulated end of the process."""


@dataclass
class Inode:
    """File content, and the length that is durable."""

    content: bytearray = field(default_factory=bytearray)
    synced: int = 0


class Disk:
    """Replacement for `os` in `atomic_files`: files in memory, and a fault at a chosen operation.

    Args:
        fault: Number of the operation at which it comes; -1 for none.
        kind: "cut" takes the power away, "error" raises what a full or broken disk raises, there and for a while.
        chance: Draws how much of what was not synced is there after a cut.
        syncs: What syncing does something for; less than "files and folders" is for controls.
        links: Whether a file may have two names.
    """

    O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_APPEND, O_RDONLY = 1, 16, 2, 4, 8, 0

    def __init__(
        self, fault: int, kind: str, chance: random.Random, syncs: str = "files and folders", links: bool = True
    ) -> None:
        self.fault, self.kind, self.chance, self.syncs, self.links = fault, kind, chance, syncs, links
        self.operations = 0
        self.folders: dict[str, dict[str, Inode]] = {}  # as a program sees them
        self.durable: dict[str, dict[str, Inode]] = {}  # the names that are there for certain
        self.pending: dict[str, list[dict[str, Inode]]] = {}  # a folder's states since
        self.handles: dict[int, Any] = {}
        self.path = self  # os.path

    @classmethod
    def holding(cls, files: dict[str, dict[str, bytes]], *settings: Any) -> "Disk":
        """Return a disk that durably holds the given files."""
        disk = cls(*settings)
        for folder, contents in files.items():
            disk.folders[folder] = {name: Inode(bytearray(c), len(c)) for name, c in contents.items()}
            disk.durable[folder] = dict(disk.folders[folder])
        return disk

    # The operations that may fail.

    def _operate(self) -> None:
        self.operations += 1
        if self.operations - 1 == self.fault and self.kind == "cut":
            raise PowerCut
        if self.kind == "error" and self.fault <= self.operations - 1 < self.fault + self.chance.choice([1, 1, 3]):
            raise OSError(self.chance.choice([errno.ENOSPC, errno.EIO]), "simulated")

    def _changed(self, folder: str) -> None:
        self.pending.setdefault(folder, []).append(dict(self.folders[folder]))

    def write(self, inode: Inode, data: bytes) -> None:
        half = self.chance.randrange(len(data) + 1)
        try:
            self._operate()
        except BaseException:
            inode.content += data[:half]
            raise
        inode.content += data

    def fsync(self, handle: int) -> None:
        self._operate()
        target = self.handles[handle]
        if isinstance(target, Inode):
            target.synced = len(target.content) if "files" in self.syncs else 0
        elif "folders" in self.syncs:
            self.durable[target], self.pending[target] = dict(self.folders[target]), []

    def replace(self, source: Any, target: Any) -> None:
        self._operate()
        folder, name = self._split(source)
        files, other = self.folders[folder], self._split(target)[1]
        if files[name] is files.get(other):
            return  # two names of one file: nothing happens
        files[other] = files.pop(name)
        self._changed(folder)

    def link(self, source: Any, target: Any) -> None:
        self._operate()
        if not self.links:
            raise PermissionError(errno.EPERM, "simulated")
        folder, name = self._split(source)
        self.folders[folder][self._split(target)[1]] = self.folders[folder][name]
        self._changed(folder)

    def unlink(self, path: Any) -> None:
        folder, name = self._split(path)
        if name not in self.folders.get(folder, {}):
            raise FileNotFoundError(path)
        self._operate()
        del self.folders[folder][name]
        self._changed(folder)

    def mkdir(self, path: Any) -> None:
        self._operate()
        self.folders[str(path)] = {}
        self.durable[str(path)] = {}

    # The ones that do not.

    def open(self, path: Any, flags: int, mode: int = 0) -> int:
        handle = len(self.handles) + 1000
        if str(path) in self.folders:
            self.handles[handle] = str(path)
            return handle
        folder, name = self._split(path)
        if flags & self.O_CREAT:
            self._operate()
            if name in self.folders[folder]:
                raise FileExistsError(path)
            self.folders[folder][name] = Inode()
            self._changed(folder)
        elif name not in self.folders.get(folder, {}):
            raise FileNotFoundError(path)
        self.handles[handle] = self.folders[folder][name]
        return handle

    def fdopen(self, handle: int, mode: str) -> Any:
        return File(self, handle)

    def close(self, handle: int) -> None:
        pass

    def listdir(self, path: Any) -> list[str]:
        return list(self.folders[str(path)])

    def isdir(self, path: Any) -> bool:
        return str(path) in self.folders or str(path) in ("/", "/disk")

    def _split(self, path: Any) -> tuple[str, str]:
        return real_os.path.split(str(path))  # type: ignore[return-value]

    # What is found after it.

    def found(self, power: bool) -> dict[str, dict[str, bytes]]:
        """Return the files of every folder after a kill or a power cut."""
        if not power:
            return {
                folder: {name: bytes(inode.content) for name, inode in names.items()}
                for folder, names in self.folders.items()
            }
        # A folder's own name is synced by its maker before anything is put into it; both are taken as there.
        return {folder: self._left(folder) for folder in self.folders}

    def _left(self, folder: str) -> dict[str, bytes]:
        names = self.chance.choice([self.durable[folder], *self.pending.get(folder, [])])
        return {name: self._torn(inode) for name, inode in names.items()}

    def _torn(self, inode: Inode) -> bytes:
        """Return the synced content and a random length of the rest, which may be zeros."""
        kept = inode.content[: self.chance.randint(inode.synced, len(inode.content))]
        if self.chance.random() < 0.5:
            kept[inode.synced :] = bytes(len(kept) - inode.synced)
        return bytes(kept)


class File(io.RawIOBase):
    """Open file of the simulated disk."""

    def __init__(self, disk: Disk, handle: int) -> None:
        self.disk, self.handle = disk, handle
        self.read_so_far = 0

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.handle

    def readinto(self, buffer: Any) -> int:
        content = self.disk.handles[self.handle].content[self.read_so_far :][: len(buffer)]
        buffer[: len(content)] = content
        self.read_so_far += len(content)
        return len(content)

    def write(self, data: Any) -> int:
        content = memoryview(data).tobytes()
        self.disk.write(self.disk.handles[self.handle], content)
        return len(content)


# A run's saves.


@dataclass
class Run:
    """Replay of a run, and the expected content of each checkpoint."""

    chance: random.Random
    saves: int = 0  # begun
    done: int = 0  # number of the last complete save
    expected: dict[int, Replay] = field(default_factory=dict)
    steps: int = 0

    def live(self, disk: Disk, replay: Replay, begun_from: tuple[Path, dict[str, Any]] | None) -> None:
        """Collect and save five times, or until the power is cut."""
        generations, store = CheckpointRotation(ROOT), Segments(ROOT / FOLDER, 0)
        if begun_from is not None:
            path, checkpoint = begun_from
            replays = list(replays_in(checkpoint))
            generations.begin_from(path, names_in(replays))
            store.continue_from(replay, replays[0])
        with mock.patch.object(durable, "os", disk):
            for _ in range(5):
                self.collect(replay)
                self.save(replay, store, generations)

    def collect(self, replay: Replay) -> None:
        for _ in range(self.chance.choice([0, 1, 5, 12, 60])):
            self.steps += 1
            ring, next_obs = replay.rings[0], np.float32([self.steps + 0.5])
            obs = ring.rows[ring.cursor, :1] if ring.running else np.float32([self.steps])
            end = self.chance.random() < 0.2
            replay.add(0, obs, np.float32([0.5]), float(self.steps), end, False, next_obs)

    def save(self, replay: Replay, store: Segments, generations: CheckpointRotation) -> None:
        self.saves += 1
        self.expected[self.saves] = copied(replay)
        try:
            state = store.save(replay)
            content = io.BytesIO()
            parts: dict[str, Any] = {"state_dict": {}, "hyper_parameters": {}, "clocks": {"updates": self.saves}}
            torch.save(parts | {"ReplayData": {"ranks": [{"replay": state}]}}, content)
            atomic_write(generations.next, lambda file: file.write(content.getvalue()))
            generations.commit(names_in([state]))
        except OSError:
            return
        self.done = self.saves


def empty() -> Replay:
    return Replay(1, 1, capacity=40, batch_size=4, n_step=2)


def copied(replay: Replay) -> Replay:
    again = empty()
    again.load_state_dict(replay.state_dict())
    return again


def recovered(folder: Path) -> tuple[Path, dict[str, Any], Replay] | None:
    """Return the newest complete checkpoint with its replay, or None."""
    for name in ("last.ckpt", "last-1.ckpt"):
        replay = empty()
        try:
            checkpoint = read_checkpoint(folder / name)
            replay.load_state_dict(with_rows(next(replays_in(checkpoint)), folder / FOLDER))
        except (UsageError, UnfitError):
            continue
        return ROOT / name, checkpoint, replay
    return None


def trial(seed: int, faults: list[tuple[int, str]], syncs: str = "files and folders") -> int:
    """Run one process per fault; each continues from the files of the previous one.

    Half of the disks, those of odd seeds, know no links.

    Returns:
        How many operations the disk did in the last process.

    Raises:
        AssertionError: A save that was done is lost, or what is read back is wrong, or files pile up.
    """
    chance = random.Random(seed)
    run, replay, begun_from, found, operations = Run(chance), empty(), None, {}, 0
    for fault, kind in faults:
        disk = Disk.holding(found, fault, "error" if kind == "error" else "cut", chance, syncs, seed % 2 == 0)
        try:
            run.live(disk, replay, begun_from)
        except PowerCut:
            pass
        else:
            if fault < 0:
                assert run.done == run.saves, "lost: a save without a fault was not done"
                check_tidy(disk)
        operations = disk.operations
        found = disk.found(power=kind != "kill")
        with tempfile.TemporaryDirectory() as folder:
            put(found, Path(folder))
            came = recovered(Path(folder))
        replay, begun_from = empty(), None
        assert came is not None or not run.done, "lost: no checkpoint is whole"
        if came is not None:
            path, checkpoint, replay = came
            number = checkpoint["clocks"]["updates"]
            assert number >= run.done, f"lost: save {run.done} was done, but {number} came back"
            check_same(replay, run.expected[number])
            begun_from, run.done = (path, checkpoint), number
    return operations


def put(found: dict[str, dict[str, bytes]], folder: Path) -> None:
    for name, contents in found.items():
        here = folder / real_os.path.relpath(name, ROOT)
        here.mkdir(exist_ok=True)
        for file, content in contents.items():
            (here / file).write_bytes(content)


def check_same(came: Replay, expected: Replay) -> None:
    (left,), (right,) = came.rings, expected.rings
    assert left.position() == right.position(), "wrong: another position"
    np.testing.assert_array_equal(left.copy(left.valid_rows), right.copy(right.valid_rows), "wrong: other rows")
    starts = [ring.index.rows(np.array(ring.index.places, np.int64)) for ring in (left, right)]
    np.testing.assert_array_equal(*starts, "wrong: other starts")


def check_tidy(disk: Disk) -> None:
    """Check that only the two checkpoints and the rows that they refer to remain."""
    assert set(disk.folders[str(ROOT)]) <= {"last.ckpt", "last-1.ckpt"}
    assert all(NAME.fullmatch(name) for name in disk.folders[str(ROOT / FOLDER)])
    assert len(disk.folders[str(ROOT / FOLDER)]) < 40


def every_fault(seed: int, step: int = 1) -> int:
    """Cause each fault at every operation of a run's second process, or at every n-th; return their number."""
    faults = range(seed % step, trial(seed, [(-1, "cut"), (-1, "cut")]), step)
    for fault in faults:
        for kind in ("cut", "kill", "error"):
            trial(seed, [(-1, "cut"), (fault, kind), (-1, "cut")])
    return 3 * len(faults)


def random_faults(count: int, syncs: str = "files and folders", seed: int = 0) -> None:
    """Cause random faults in runs of three processes and a fourth one that finishes."""
    chance = random.Random(seed)
    for number in range(0, count, 3):
        kinds = [(chance.randrange(120), chance.choice(["cut", "cut", "kill", "error"])) for _ in range(3)]
        trial(seed + number, [*kinds, (-1, "cut")], syncs)


def run_all(count: int = 10_000) -> str:
    """Cause every fault of three runs and `count` random ones; return a summary if no data is lost or wrong."""
    segments.SEGMENT_BYTES = 16 * 10  # ten rows
    planned = sum(every_fault(seed) for seed in range(3))
    random_faults(count)
    return f"simulated disk: {planned} planned and {count} random faults, 0 lost, 0 wrong"


if __name__ == "__main__":
    print(run_all(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
