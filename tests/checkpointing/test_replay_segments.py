"""Segment files of replay rows: what is written, what checkpoints refer to, and detection of damage."""

import errno
import os
import resource
import shutil
import signal
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

import faulty_disk
import toys  # noqa: F401
from segment_rows import check_rows
from td3_lightning import TD3, Collector, Replay, ReplayData, UsageError
from td3_lightning.checkpointing import replay_segments as segments
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.interruption import StopOnSignal
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.checkpointing.log_rollback import LogRollback
from td3_lightning.checkpointing.replay_segments import CheckpointRotation, Segments, delete_unreferenced
from td3_lightning.errors import ExitOnSignal
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.serialization.checkpoint_file import read_checkpoint, replays_in
from td3_lightning.serialization.segment_files import FOLDER, NAME, UnfitError, names_in, with_rows
from tests.replay.test_buffer import ACTION_DIM, OBS_DIM, World

ROW = 4 * (OBS_DIM + ACTION_DIM + 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "replay"


@pytest.fixture(autouse=True)
def _short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a segment file to ten rows."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 10 * ROW + 3)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def saved(replay: Replay, folder: Path, store: Segments | None = None) -> dict[str, Any]:
    """Save a checkpoint and read it back."""
    torch.save((store or Segments(folder, 0)).save(replay), folder.parent / "state.pt")
    state: dict[str, Any] = torch.load(folder.parent / "state.pt", weights_only=True)
    return state


def like(world: World) -> Replay:
    """Return an empty replay with the same settings."""
    replay = world.replay
    return Replay(
        OBS_DIM,
        ACTION_DIM,
        capacity=replay.capacity,
        batch_size=replay.batch_size,
        n_step=replay.n_step,
        gamma=replay.gamma,
        num_envs=len(replay.rings),
        reward_scale=replay.reward_scale,
    )


def same(one: Replay, two: Replay) -> None:
    """Check that two replays hold the same bits and sample the same batches."""
    for left, right in zip(one.rings, two.rings, strict=True):
        np.testing.assert_array_equal(left.rows, right.rows)
        starts = [ring.index.rows(np.array(ring.index.places, np.int64)) for ring in (left, right)]
        np.testing.assert_array_equal(*starts)
        assert left.position() == right.position()
    if one.num_transitions:
        assert torch.equal(one.generator.get_state(), two.generator.get_state())
        assert all(map(torch.equal, one.sample(), two.sample()))


@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_any_number_of_steps_between_saves_is_bit_exact(folder: Path, n_step: int, num_envs: int) -> None:
    """Includes no steps, more steps than the ring holds, truncated episodes and new processes."""
    for seed, rows in enumerate([n_step + 2, 13, 37]):
        world = World(seed, num_envs, n_step, rows, ends=0.2)
        store = Segments(folder, 0)
        for _ in range(30):
            for _ in range(int(world.rng.choice([0, 1, 2, 7, 3 * rows]))):
                world.step(int(world.rng.integers(num_envs)))
            if world.rng.random() < 0.3:
                world.lose(int(world.rng.integers(num_envs)))
            state = saved(world.replay, folder, store)
            again = like(world)
            again.load_state_dict(with_rows(state, folder))
            same(world.replay, again)
            if world.rng.random() < 0.2:
                store = Segments(folder, 0)
                store.continue_from(world.replay, state)


def test_save_appends_only_new_rows(folder: Path) -> None:
    world, store = World(1, 2, 3, 500, ends=0.0), Segments(folder, 0)
    for _ in range(200):
        world.step(0)
    saved(world.replay, folder, store)
    before = files(folder)
    world.step(0)
    saved(world.replay, folder, store)
    after = files(folder)
    assert all(after[name].startswith(content) for name, content in before.items())
    grown = sum(map(len, after.values())) - sum(map(len, before.values()))
    assert grown == ROW  # of the step before, which is settled now
    assert max(map(len, after.values())) == 10 * ROW
    assert all(NAME.fullmatch(name) for name in after)


def test_overwritten_rows_are_unlisted_then_deleted(folder: Path) -> None:
    world, store = World(1, 1, 1, 40), Segments(folder, 0)
    for _ in range(100):
        for _ in range(3):
            world.step(0)
        state = saved(world.replay, folder, store)
        delete_unreferenced(folder, names_in([state]))
    assert 4 <= len(names_in([state])) <= 6
    assert files(folder).keys() == names_in([state])


def test_failed_append_is_repeated_in_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, store = World(1, 1, 1, 500, ends=0.0), Segments(folder, 0)
    for _ in range(6):
        world.step(0)
    first = saved(world.replay, folder, store)
    for _ in range(60):
        world.step(0)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * ROW, limit[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            store.save(world.replay)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    check_rows(first, folder)
    state = saved(world.replay, folder, store)
    check_rows(first, folder)
    again = like(world)
    again.load_state_dict(with_rows(state, folder))
    same(world.replay, again)


# Damage.


@pytest.fixture
def world(folder: Path) -> World:
    world = World(2, 2, 2, 60)
    for env in [0] * 70 + [1] * 40:
        world.step(env)
    return world


def test_truncated_or_changed_file_is_refused_by_name(folder: Path, world: World, rng: Any) -> None:
    state = saved(world.replay, folder)
    names = sorted(names_in([state]))
    for trial in range(564):
        path = folder / names[int(rng.integers(len(names)))]
        whole = path.read_bytes()
        place = int(rng.integers(len(whole)))
        changed = bytearray(whole[:place] if trial < 64 else whole)
        if trial >= 64:
            changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(UnfitError) as unfit:
            check_rows(state, folder)
        assert unfit.value.path == path
        path.write_bytes(whole)
    check_rows(state, folder)


def test_swapped_or_missing_file_is_refused_by_name(folder: Path, world: World) -> None:
    state = saved(world.replay, folder)
    one, two = (folder / segment["name"] for segment in state["rings"][0]["segments"][:2])
    one.rename(folder / "aside")
    with pytest.raises(UnfitError, match="cannot be read") as unfit:
        check_rows(state, folder)
    assert unfit.value.path == one
    two.rename(one)
    (folder / "aside").rename(two)
    with pytest.raises(UnfitError, match="not the saved file"):
        check_rows(state, folder)


def test_another_node_deletes_the_segments_on_its_own_disk(tmp_path: Path) -> None:
    callback, names = LastCheckpoint(tmp_path), [f"5f0c6a1be0d2-1-0-{number}.rows" for number in range(4)]
    callback._rotation, callback._segments = CheckpointRotation(tmp_path), Segments(tmp_path / FOLDER, 1)
    (tmp_path / FOLDER).mkdir()
    for name in names:
        (tmp_path / FOLDER / name).touch()
    strategy = SimpleNamespace(broadcast=lambda error: error)
    trainer: Any = SimpleNamespace(global_step=1, is_global_zero=False, local_rank=0, strategy=strategy)
    trainer.save_checkpoint, trainer.datamodule = lambda _: None, None
    for named, kept in (([0, 1, 2], [0, 1, 2]), ([1, 2], [0, 1, 2]), ([2], [1, 2])):
        callback._named = {names[number] for number in named}
        assert callback.save(trainer)
        assert sorted(os.listdir(tmp_path / FOLDER)) == [names[number] for number in kept]


def test_rows_that_no_file_holds_are_reported(folder: Path, world: World) -> None:
    for place in (0, 1, -1):
        state = saved(world.replay, folder)
        del state["rings"][0]["segments"][place]
        with pytest.raises(UsageError, match="must hold the rows"):
            like(world).load_state_dict(with_rows(state, folder))


# A disk that fails.


@pytest.fixture
def _ten_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 160)


@pytest.mark.usefixtures("_ten_rows")
def test_disk_faults_lose_and_change_nothing() -> None:
    """Run a few of the faults of `faulty_disk.py`."""
    for seed in (0, 1):  # with links and without
        assert faulty_disk.every_fault(seed, step=6) > 40
    faulty_disk.random_faults(30)


@pytest.mark.usefixtures("_ten_rows")
@pytest.mark.parametrize("syncs", ["files", "folders", ""])
def test_missing_syncs_lose_data(syncs: str) -> None:
    with pytest.raises(AssertionError, match=r"lost|wrong"):
        faulty_disk.random_faults(150, syncs)


# In a run.


def new_fit(make_trainer: Any, folder: Path, epochs: int, **kwargs: Any) -> tuple[TD3, ReplayData, L.Trainer]:
    data = ReplayData("toys/Seeded-v0", batch_size=4, capacity=100, steps_per_epoch=10, eval_episodes=2, **kwargs)
    module = TD3(3, data.action_low, data.action_high, hidden_dims=(4,))
    best = BestCheckpoint(dirpath=str(folder), monitor="updates")
    trainer = make_trainer(
        callbacks=[Collector(warmup_steps=20), best, LastCheckpoint(folder)],
        enable_checkpointing=True,
        max_epochs=epochs,
        plugins=[AtomicCheckpointIO()],
    )
    return module, data, trainer


def fit(*arguments: Any, ckpt_path: Path | None = None, **kwargs: Any) -> tuple[TD3, ReplayData]:
    module, data, trainer = new_fit(*arguments, **kwargs)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module, data


def test_run_keeps_two_last_with_rows_and_one_best_without(make_trainer: Any, tmp_path: Path) -> None:
    fit(make_trainer, tmp_path, 3)
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == [
        "last-1.ckpt",
        "last.ckpt",
        "steps_50_updates_30.00.ckpt",
    ]
    clocks = [read_checkpoint(tmp_path / name)["clocks"]["updates"] for name in ("last-1.ckpt", "last.ckpt")]
    assert clocks == [20, 30]
    named = [list(replays_in(read_checkpoint(path))) for path in sorted(tmp_path.glob("*.ckpt"))]
    assert list(map(len, named)) == [1, 1, 0]
    for replays in named:
        for replay in replays:
            check_rows(replay, tmp_path / "replay")
    assert files(tmp_path / "replay").keys() == names_in(named[0]) | names_in(named[1])
    assert (tmp_path / "last.ckpt").stat().st_size - (tmp_path / "steps_50_updates_30.00.ckpt").stat().st_size < 50_000


def test_resume_from_best_keeps_the_other_checkpoints(make_trainer: Any, tmp_path: Path) -> None:
    fit(make_trainer, tmp_path, 3)
    module, data, trainer = new_fit(make_trainer, tmp_path, 4)
    data.empty_replay = True
    trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "steps_50_updates_30.00.ckpt")
    for name, updates in (("last-1.ckpt", 20), ("last.ckpt", 40)):  # last.ckpt may be damaged, so last-1.ckpt stays
        checkpoint = read_checkpoint(tmp_path / name)
        assert checkpoint["clocks"]["updates"] == updates
        (replay,) = replays_in(checkpoint)
        check_rows(replay, tmp_path / "replay")


def test_damaged_previous_checkpoint_does_not_end_a_stage(make_trainer: Any, tmp_path: Path) -> None:
    """The first save of the stage deletes no rows, because those of last-1.ckpt are unknown. The second replaces it."""
    fit(make_trainer, tmp_path, 3)
    (tmp_path / "last-1.ckpt").write_bytes(b"damaged")
    before = files(tmp_path / "replay")
    fit(make_trainer, tmp_path, 4, ckpt_path=tmp_path / "steps_50_updates_30.00.ckpt", empty_replay=True)
    assert before.items() <= files(tmp_path / "replay").items()
    fit(make_trainer, tmp_path, 5, ckpt_path=tmp_path / "last.ckpt")
    checkpoints = [read_checkpoint(tmp_path / name) for name in ("last-1.ckpt", "last.ckpt")]
    assert [each["clocks"]["updates"] for each in checkpoints] == [40, 50]
    named = [list(replays_in(each)) for each in checkpoints]
    for replay in chain.from_iterable(named):
        check_rows(replay, tmp_path / "replay")
    assert files(tmp_path / "replay").keys() == names_in(named[0]) | names_in(named[1])


def test_orphaned_files_are_deleted_by_the_next_save(make_trainer: Any, tmp_path: Path) -> None:
    fit(make_trainer, tmp_path, 1)
    orphans = [tmp_path / "replay" / "0123456789ab-0-0-1.rows"]
    orphans += [tmp_path / f".{name}.unfinished" for name in ("next.ckpt", "steps_30_updates_10.00.ckpt")]
    for orphan in orphans:
        orphan.write_bytes(b"left by a kill")
    mine = tmp_path / "replay" / "notes.rows"
    mine.write_bytes(b"of the user's")
    fit(make_trainer, tmp_path, 2, ckpt_path=tmp_path / "last.ckpt")
    assert not any(orphan.exists() for orphan in orphans)
    assert mine.exists()


def test_damaged_file_is_named_and_previous_one_resumes(make_trainer: Any, tmp_path: Path) -> None:
    fit(make_trainer, tmp_path, 2)
    late = names_in(list(replays_in(read_checkpoint(tmp_path / "last.ckpt")))) - names_in(
        list(replays_in(read_checkpoint(tmp_path / "last-1.ckpt")))
    )
    path = tmp_path / "replay" / min(late)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(
        UsageError, match=rf"{path} is damaged.*Use another checkpoint, such as {tmp_path}/last-1.ckpt\.$"
    ):
        fit(make_trainer, tmp_path, 3, ckpt_path=tmp_path / "last.ckpt")
    module, _ = fit(make_trainer, tmp_path, 3, ckpt_path=tmp_path / "last-1.ckpt")
    assert module.updates == 30
    # The damaged checkpoint never replaced the complete one.
    clocks = [read_checkpoint(tmp_path / name)["clocks"]["updates"] for name in ("last-1.ckpt", "last.ckpt")]
    assert clocks == [20, 30]
    fit(make_trainer, tmp_path, 4, ckpt_path=tmp_path / "last-1.ckpt")


def test_checkpoint_copied_with_its_replay_resumes(make_trainer: Any, tmp_path: Path) -> None:
    there, copy, here = tmp_path / "there", tmp_path / "copy", tmp_path / "here"
    fit(make_trainer, there, 1)
    shutil.copytree(there, copy)
    shutil.rmtree(there)
    before = files(copy / "replay")
    fit(make_trainer, here, 2, ckpt_path=copy / "last.ckpt")
    assert files(copy / "replay") == before
    (replay,) = replays_in(read_checkpoint(here / "last.ckpt"))
    check_rows(replay, here / "replay")


@pytest.mark.parametrize("name", ["steps_40_updates_20.00.ckpt", "last.ckpt"])
def test_checkpoint_without_replay_requires_empty_replay(make_trainer: Any, tmp_path: Path, name: str) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    fit(make_trainer, there, 2)
    shutil.copy(there / name, tmp_path / name)
    with pytest.raises(UsageError, match=r"--data\.empty_replay true"):
        fit(make_trainer, here, 3, ckpt_path=tmp_path / name)
    module, data = fit(make_trainer, here, 3, ckpt_path=tmp_path / name, empty_replay=True)
    assert (module.updates, data.replay.steps_stored) == (30, 20 + 10)
    assert module.env_steps == 40 + 20 + 10  # the policy's own steps fill it first
    assert data.replay.steps_before == 40
    module, data = fit(make_trainer, here, 4, ckpt_path=here / "last.ckpt")
    assert (module.updates, data.replay.steps_stored) == (40, 40)
    assert data.replay.steps_before == 40  # which the schedule of n_step goes by


def test_interrupted_refill_of_the_replay_resumes(make_trainer: Any, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    fit(make_trainer, there, 2)
    module, data, trainer = new_fit(make_trainer, here, 3, empty_replay=True)
    trainer.callbacks.append(StopOnSignal())  # type: ignore[attr-defined]
    add = data.replay.add

    def add_and_stop(*step: Any) -> None:
        add(*step)
        if data.replay.steps_stored == 3:
            signal.raise_signal(signal.SIGTERM)

    data.replay.add = add_and_stop  # type: ignore[method-assign]
    with pytest.raises(ExitOnSignal):
        trainer.fit(module, datamodule=data, ckpt_path=there / "last.ckpt")
    assert (module.env_steps, module.updates) == (40 + 3, 20)
    module, data = fit(make_trainer, here, 3, ckpt_path=here / "last.ckpt")
    assert (module.env_steps, module.updates, data.replay.steps_stored) == (40 + 20 + 10, 30, 20 + 10)


class At(Callback):
    """Call a function before an update."""

    def __init__(self, updates: int, do: Callable[[], object]) -> None:
        self.updates, self.do = updates, do

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if pl_module.updates == self.updates:
            self.do()


def log_and_fit(make_trainer: Any, folder: Path, *callbacks: Callback) -> tuple[TD3, list[str]]:
    """Train for four epochs with the log beside the checkpoints; return the warnings."""
    module, data, trainer = new_fit(make_trainer, folder, 4)
    trainer.loggers = [RunLogger(str(folder), "", "")]
    trainer.callbacks[:0] = [*callbacks, LogRollback()]  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.fit(module, datamodule=data)
    return module, [str(warning.message) for warning in warned if "run" in str(warning.message)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
def test_full_disk_warns_once_and_training_continues(make_trainer: Any, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept: dict[str, bytes] = {}

    def fill() -> None:
        kept.update({path.name: path.read_bytes() for path in tmp_path.glob("*.ckpt")})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))

    try:
        module, warned = log_and_fit(make_trainer, tmp_path, At(20, fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert module.updates == 40
    assert len([said for said in warned if "last.ckpt could not be saved" in said]) == 1
    assert len([said for said in warned if "best checkpoint could not be saved" in said]) == 1
    assert len([said for said in warned if "Cannot write part of the log" in said]) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.ckpt")} == kept
    assert set(kept) == {"steps_40_updates_20.00.ckpt", "last-1.ckpt", "last.ckpt"}
    assert module.trainer.checkpoint_callback.best_model_path == str(tmp_path / "steps_40_updates_20.00.ckpt")  # type: ignore[union-attr]
    module, _ = fit(make_trainer, tmp_path, 3, ckpt_path=tmp_path / "last.ckpt")
    assert module.updates == 30


def test_failed_last_save_is_repeated_at_the_end(make_trainer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    module, data, trainer = new_fit(make_trainer, tmp_path, 2)
    commit, errors = CheckpointRotation.commit, [OSError(errno.ENOSPC, "No space left on device")]

    def commit_later(self: CheckpointRotation, named: set[str]) -> None:
        if module.updates == 20 and errors:
            raise errors.pop()
        commit(self, named)

    monkeypatch.setattr(CheckpointRotation, "commit", commit_later)
    with pytest.warns(UserWarning, match="last.ckpt could not be saved"):
        trainer.fit(module, datamodule=data)
    assert read_checkpoint(tmp_path / "last.ckpt")["clocks"]["updates"] == 20
