"""Atomic saves, detection of damaged files, and stops by signals from which a run can be resumed."""

import contextlib
import os
import pickle
import random
import re
import resource
import signal
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback

import toys  # noqa: F401
from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.atomic_files import atomic_write, link_or_copy
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.interruption import SaveOnFailure, StopOnSignal
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.errors import EnvError, ExitOnSignal
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from td3_lightning.training.evaluation import StopWhenSolved

CONTENT = {"clocks": {"updates": 3}, "weights": torch.arange(20_000.0)}
Make = Callable[..., L.Trainer]


def save(path: Path, content: Any = CONTENT) -> None:
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}, "hyper_parameters": {}, **content}, path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Writing.


def test_file_is_synced_before_its_rename_and_its_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def note(name: str) -> None:
        real = getattr(os, name)

        def noted(*arguments: Any) -> Any:
            of_folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}")
            order.append(f"{name} folder" if of_folder else name)
            return real(*arguments)

        monkeypatch.setattr(os, name, noted)

    note("fsync")
    note("replace")
    save(tmp_path / "last.ckpt")
    assert order == ["fsync", "replace", "fsync folder"]


def test_link_or_copy_can_be_repeated_after_a_kill(tmp_path: Path) -> None:
    """A kill right after `link_or_copy` leaves one file with two names. The resumed run repeats the step."""
    save(tmp_path / "last.ckpt")
    for _ in range(2):
        link_or_copy(tmp_path / "last.ckpt", tmp_path / "last-1.ckpt")
        assert names(tmp_path) == ["last-1.ckpt", "last.ckpt"]


@pytest.fixture
def full_disk() -> Any:
    """Limit the size of files to 20 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_full_disk_keeps_the_old_file_and_names_the_error(tmp_path: Path) -> None:
    save(tmp_path / "last.ckpt", {"clocks": {}})
    old = (tmp_path / "last.ckpt").read_bytes()
    with pytest.raises(OSError, match="File too large"):
        save(tmp_path / "last.ckpt")
    assert (tmp_path / "last.ckpt").read_bytes() == old
    assert names(tmp_path) == ["last.ckpt"]


def test_interrupted_or_impossible_save_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    save(path)

    def interrupted(file: Any) -> None:
        file.write(b"half")
        raise ExitOnSignal(130)

    with pytest.raises(ExitOnSignal):
        atomic_write(path, interrupted)
    with pytest.raises(UsageError, match=r"clocks must be made of dense tensors.*got a function\. Store"):
        save(path, {"clocks": lambda: None})
    assert read_checkpoint(path)["clocks"] == CONTENT["clocks"]
    assert names(tmp_path) == ["last.ckpt"]


def test_more_plain_values_than_can_be_loaded_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^A checkpoint must hold at most 4,194,304 bytes .*, got 4,\d.*\. Store"):
        save(tmp_path / "last.ckpt", {"callbacks": {"Mine": list(range(1_000_000))}})
    assert not os.listdir(tmp_path)


def test_kill_during_a_save_loses_nothing(tmp_path: Path) -> None:
    path, moments = tmp_path / "last.ckpt", random.Random(1)
    save(path)
    found = set()
    for _ in range(20):
        saver = os.fork()
        if saver == 0:
            while True:
                save(path)
        time.sleep(moments.uniform(0.0, 0.02))
        os.kill(saver, signal.SIGKILL)
        os.waitpid(saver, 0)
        found.add(len(names(tmp_path)))
        assert torch.equal(read_checkpoint(path)["weights"], CONTENT["weights"])
    save(path)
    assert names(tmp_path) == ["last.ckpt"]
    assert found == {1, 2}, "no kill came in the middle of saving, or files pile up"


# Reading.


def zip_of(**files: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    return write


def shortened(path: Path) -> None:
    save(path)
    os.truncate(path, 30_000)


def flipped(path: Path) -> None:
    save(path)
    content = bytearray(path.read_bytes())
    content[40_000] ^= 1
    path.write_bytes(content)


class Hostile:
    """Create a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.folder),))


DAMAGED = "is damaged, or not a checkpoint of td3_lightning"
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: None, "cannot be read (No such file or directory)"),
    "folder": (lambda path: path.mkdir(), "cannot be read (Is a directory)"),
    "empty": (lambda path: path.touch(), DAMAGED),
    "zeros": (lambda path: path.write_bytes(bytes(90_000)), DAMAGED),
    "text": (lambda path: path.write_text("model:\n  tau: 0.005\n"), DAMAGED),
    "truncated": (shortened, DAMAGED),
    "flipped byte": (flipped, f"{DAMAGED}: Bad CRC-32"),
    "another archive": (zip_of(words=b"none"), DAMAGED),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(CONTENT)), DAMAGED),
    "tensor": (lambda path: torch.save(torch.ones(3), path), DAMAGED),
    "foreign": (lambda path: torch.save({"state_dict": {}}, path), f"{DAMAGED}: it has no clocks and no hyper_param"),
    "hostile": (
        lambda path: torch.save({"clocks": Hostile(path.with_name("ran"))}, path),
        f"{DAMAGED}: it names 'posix mkdir', which could run code when loaded",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_file_is_named_and_another_one_suggested(tmp_path: Path, fault: str) -> None:
    make, reason = FAULTS[fault]
    path = tmp_path / "last.ckpt"
    make(path)
    start = f"^{re.escape(f'{path} {reason}')}.*"
    with pytest.raises(UsageError, match=rf"{start}\. Use the path of a .ckpt file that a run has saved\.$"):
        read_checkpoint(path)

    folder = path if path.is_dir() else tmp_path
    for age, name in enumerate(("best", "last-1", "older")):
        other = folder / f"{name}.ckpt"
        other.touch()
        os.utime(other, (9e9 - age, 9e9 - age))
    offer = re.escape(f"Use another checkpoint, such as {folder / 'last-1.ckpt'}.")
    with pytest.raises(UsageError, match=rf"{start}\. {offer}$"):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=False)
    assert not (tmp_path / "ran").exists()


def test_changed_or_missing_bytes_never_load_wrong_data(tmp_path: Path, rng: Any) -> None:
    path = tmp_path / "last.ckpt"
    content = {"clocks": {"updates": 3}, "weights": torch.arange(500.0), "more": [torch.zeros(3), "text", 1.5]}
    save(path, content)
    whole = path.read_bytes()
    refused = 0
    for place in rng.integers(len(whole), size=500):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            read = read_checkpoint(path)
        except UsageError:
            refused += 1
        else:  # the byte was one of the archive's padding
            assert torch.equal(read.pop("weights"), content["weights"])
            assert all(str(read[name]) == str(content[name]) for name in ("clocks", "more"))
    assert refused > 200
    for length in rng.integers(len(whole), size=64):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            read_checkpoint(path)


# Stopping.


class Signal(Callback):
    """Send this process a signal, once or more often, at a given hook.

    Args:
        moment: Name of the hook.
        updates: Clock at which it does.
        numbers: The signals.
    """

    def __init__(self, moment: str, updates: int, *numbers: signal.Signals) -> None:
        self.updates, self.numbers = updates, numbers
        setattr(self, moment, self._send)

    def _send(self, trainer: L.Trainer, module: TD3, *_: Any) -> None:
        if module.updates == self.updates:
            for number in self.numbers:
                signal.raise_signal(number)


HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in HANDLED]


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Any:
    before = handlers()
    yield
    assert handlers() == before


class Fit:
    """Train for 3 epochs of 10 updates, which the given callbacks may stop.

    Args:
        make_trainer: Builds a Trainer.
        folder: Where it saves.
        callbacks: After the Collector, before StopOnSignal.
        keep: What keeps its checkpoints.
    """

    def __init__(self, make_trainer: Make, folder: Path, *callbacks: Callback, keep: Sequence[Callback] = ()) -> None:
        self.data = ReplayData(
            "toys/Seeded-v0", batch_size=4, capacity=100, steps_per_epoch=10, eval_episodes=3, num_envs=2
        )
        self.module = TD3(3, self.data.action_low, self.data.action_high, hidden_dims=(4,))
        self.collector, self.stop = Collector(warmup_steps=20), StopOnSignal()
        keep = keep or [LastCheckpoint(folder)]
        self.trainer = make_trainer(
            callbacks=[SaveOnFailure(), self.collector, *callbacks, self.stop, *keep],
            enable_checkpointing=True,
            max_epochs=3,
            plugins=[AtomicCheckpointIO()],
        )

    def __call__(self, ckpt_path: Path | None = None) -> int:
        """Return the exit status, which is 0 if the run finished."""
        try:
            self.trainer.fit(self.module, datamodule=self.data, ckpt_path=ckpt_path)
        except ExitOnSignal as stopped:
            return int(stopped.code)  # type: ignore[arg-type]
        return 0


@pytest.mark.parametrize(("number", "status"), zip(HANDLED, (130, 143, 75, 129), strict=True))
def test_signal_ends_the_update_saves_and_exits(
    make_trainer: Make, tmp_path: Path, number: signal.Signals, status: int, capfd: Any
) -> None:
    fit = Fit(make_trainer, tmp_path, Signal("on_train_batch_start", 13, number))
    assert fit() == status
    clocks = read_checkpoint(tmp_path / "last.ckpt")["clocks"]
    assert clocks == {"env_steps": 20 + 14, "updates": 14, "episodes": fit.module.episodes}
    assert 2 * (17 // 8) <= clocks["episodes"] <= 2 * (17 // 4)  # each environment took 17 steps in episodes of 4 to 8
    assert "Stopping after this update" in capfd.readouterr().err
    assert Fit(make_trainer, tmp_path)(tmp_path / "last.ckpt") == 0


def test_agent_of_a_stopped_run_resumes_as_a_new_one(make_trainer: Make, tmp_path: Path) -> None:
    """The stopped Trainer's optimizers must not be used, also within an epoch."""
    fit = Fit(make_trainer, tmp_path / "stopped", Signal("on_train_batch_start", 13, signal.SIGTERM))
    assert fit() == 143
    runs = Fit(make_trainer, tmp_path / "new"), Fit(make_trainer, tmp_path / "same")
    runs[1].module = fit.module
    for run in runs:
        assert run(tmp_path / "stopped" / "last.ckpt") == 0
        assert run.module.updates == 30
    new, same = (run.module.state_dict() for run in runs)
    assert all(map(torch.equal, new.values(), same.values()))


@pytest.mark.parametrize(
    ("moment", "at", "saved"),
    [
        ("on_fit_start", 0, {"env_steps": 0, "updates": 0}),
        ("on_train_start", 0, {"env_steps": 20, "updates": 0}),
        ("on_train_batch_end", 1, {"env_steps": 22, "updates": 1}),
        ("on_train_batch_end", 10, {"env_steps": 30, "updates": 10}),  # an epoch's last
        ("on_validation_batch_end", 20, {"env_steps": 40, "updates": 20}),  # in the middle of the evaluation
        ("on_validation_end", 20, {"env_steps": 42, "updates": 21}),
        ("on_train_epoch_end", 20, {"env_steps": 42, "updates": 21}),
    ],
)
def test_each_failure_saves_the_right_checkpoint(
    make_trainer: Make, tmp_path: Path, moment: str, at: int, saved: dict[str, int]
) -> None:
    assert Fit(make_trainer, tmp_path, Signal(moment, at, signal.SIGTERM))() == 143
    assert read_checkpoint(tmp_path / "last.ckpt")["clocks"].items() >= saved.items()


class Fails(Callback):
    """Make an environment fail at a given hook."""

    def __init__(self, moment: str) -> None:
        setattr(self, moment, self._fail)

    def _fail(self, trainer: L.Trainer, module: TD3, *_: Any) -> None:
        if trainer.should_stop:
            raise EnvError("The environment raised.")


@pytest.mark.parametrize(
    "spoiler",
    [
        Signal("on_train_batch_start", 0, signal.SIGTERM),
        Signal("on_validation_batch_start", 1, signal.SIGTERM),
        Fails("on_train_batch_end"),
        Fails("on_validation_batch_end"),
    ],
)
def test_resumed_solved_run_repeats_its_last_evaluation(make_trainer: Make, tmp_path: Path, spoiler: Callback) -> None:
    def fit(folder: Path, *others: Callback, ckpt_path: Path | None = None) -> list[Any]:
        solved = StopWhenSolved(-1e9, window=2)
        best = BestCheckpoint(dirpath=str(folder))
        run = Fit(make_trainer, folder, solved, *others, keep=[best, LastCheckpoint(folder)])
        assert run(ckpt_path) == (143 if others else 0)
        return [run.module.updates, solved.returns, Path(best.best_model_path).name]

    whole = fit(tmp_path / "whole")
    with contextlib.suppress(EnvError):
        fit(tmp_path / "stopped", spoiler)
    last = tmp_path / "stopped" / "last.ckpt"
    for _ in range(2):  # the second fit finds the run finished
        assert fit(tmp_path / "stopped", ckpt_path=last) == whole


def test_warm_up_stops_at_a_step_and_resumes(make_trainer: Make, tmp_path: Path, monkeypatch: Any) -> None:
    step, steps = Collector._step, []

    def signal_at_sixth(collector: Collector, *arguments: Any) -> Any:
        steps.append(step(collector, *arguments))
        if len(steps) == 6:
            signal.raise_signal(signal.SIGINT)
        return steps[-1]

    monkeypatch.setattr(Collector, "_step", signal_at_sixth)
    assert Fit(make_trainer, tmp_path)() == 130
    assert read_checkpoint(tmp_path / "last.ckpt")["clocks"]["env_steps"] == 12
    resumed = Fit(make_trainer, tmp_path)
    assert resumed(tmp_path / "last.ckpt") == 0
    assert resumed.module.env_steps == 20 + 30


def test_second_ctrl_c_exits_at_once(make_trainer: Make, tmp_path: Path) -> None:
    fit = Fit(make_trainer, tmp_path, Signal("on_train_batch_start", 15, signal.SIGINT, signal.SIGINT))
    assert fit() == 130
    assert read_checkpoint(tmp_path / "last.ckpt")["clocks"]["updates"] == 10
    assert fit.module.updates == 15


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ignored_signal_stays_ignored(make_trainer: Make, tmp_path: Path, number: signal.Signals) -> None:
    """A shell's background jobs ignore SIGINT, and nohup ignores SIGHUP."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert Fit(make_trainer, tmp_path, Signal("on_train_batch_start", 3, number))() == 0
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_next_fit_with_the_same_callbacks_is_not_stopped(make_trainer: Make, tmp_path: Path) -> None:
    fit = Fit(make_trainer, tmp_path, Signal("on_fit_start", 0, signal.SIGTERM))
    assert fit() == 143
    assert fit.module.env_steps == 0
    fit.trainer = make_trainer(callbacks=[fit.collector, fit.stop], max_epochs=3)
    assert fit() == 0
    assert fit.module.env_steps == 20 + 30


def test_error_during_an_update_saves_nothing(make_trainer: Make, tmp_path: Path) -> None:
    class Break(Callback):
        def on_train_batch_start(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
            if module.updates == 12:
                signal.raise_signal(signal.SIGTERM)
                raise ArithmeticError

    with pytest.raises(ArithmeticError):
        Fit(make_trainer, tmp_path, Break())()
    assert read_checkpoint(tmp_path / "last.ckpt")["clocks"]["updates"] == 10
