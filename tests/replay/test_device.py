"""Replay on a device, here a copy on the CPU, against the replay itself, bit-exactly."""

from typing import Any

import numpy as np
import pytest
import torch

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Batch, Collector, ReplayData, UsageError
from td3_lightning.replay import device as on_device
from td3_lightning.replay.device import DeviceReplay
from td3_lightning.replay.pixels import Pixels
from tests.replay.test_buffer import World
from tests.replay.test_pixels import Linear
from tests.replay.test_pixels import new_data as new_pixels

CPU = torch.device("cpu")


def both(replay: Any, copied: DeviceReplay) -> tuple[Batch, Batch]:
    """Sample the same transitions from both replays."""
    state = replay.generator.get_state()
    one = replay.sample()
    replay.generator.set_state(state)
    return one, copied.sample()


def check_same(one: Batch, other: Batch) -> None:
    for name, column, same in zip(Batch._fields, one, other, strict=True):
        assert column.dtype == same.dtype, name
        assert torch.equal(column, same), name


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("n_step", [1, 3])
def test_batches_match_the_replay_while_it_is_written(num_envs: int, n_step: int, rng: np.random.Generator) -> None:
    """The ring is overwritten several times, once between two batches."""
    world = World(1, num_envs, n_step, rows=40 * num_envs)
    copied = DeviceReplay(world.replay, CPU)
    for _ in range(80):
        for env in rng.integers(num_envs, size=rng.choice([1, 5, 11, 60 * num_envs], p=[0.4, 0.3, 0.2, 0.1])):
            world.step(env)
        if rng.random() < 0.2:
            world.lose(int(rng.integers(num_envs)))
        if world.replay.num_transitions:
            check_same(*both(world.replay, copied))
    assert copied._rows is not None
    assert copied._rows.data_ptr() != world.replay.rows.data_ptr()


def test_first_batch_of_a_long_run_needs_little_memory() -> None:
    """Only rows that the ring still holds are listed, not those since the start of the run."""
    world = World(1, 1, 1, rows=100)
    for _ in range(1_500):
        world.step(0)
    listed = DeviceReplay(world.replay, CPU)._new_rows()
    assert len(listed) <= 102


def test_few_rows_are_copied_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, 1, 1, rows=1_000)
    for _ in range(1_500):
        world.step(0)
    copied, sent = DeviceReplay(world.replay, CPU), []
    monkeypatch.setattr(on_device, "_copy_together", lambda parts, device: sent.append(parts) or parts)
    for _ in range(50):
        copied.sample()
        world.step(0)
    rows = [len(parts[-1]) for parts in sent]
    assert rows[0] == 0, "the first batch copies all rows separately"
    assert set(rows[1:]) == {3, 2}, (
        "the last row may become an episode's end; then follow two new rows, or one at an end"
    )


@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_stacks_match_the_replay(shift: int, n_step: int, num_envs: int, make_trainer: Any) -> None:
    pixels = Pixels(stack=3, height=4, width=5, shift=shift)
    data = new_pixels(pixels, capacity=60, n_step=n_step, num_envs=num_envs)
    copied = DeviceReplay(data.replay, CPU)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), encoder=Linear())
    for steps in (50, 90, 130):
        make_trainer(callbacks=[Collector(steps)], max_epochs=1, limit_train_batches=1).fit(module, datamodule=data)
        for _ in range(5):
            check_same(*both(data.replay, copied))


class Copied(ReplayData):
    """Sample batches as on a GPU."""

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        return type(loader)(DeviceReplay(self.replay, CPU))


@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_training_is_bit_exact(make_trainer: Any, alpha: float) -> None:
    runs = []
    for kind in (ReplayData, Copied):
        torch.manual_seed(1)
        collector = Collector(warmup_steps=20)
        collector.rng = np.random.default_rng(1)
        data = kind("toys/Seeded-v0", steps_per_epoch=60, batch_size=8, eval_episodes=1, n_step=2, priority_alpha=alpha)
        module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(6,), critic_loss="huber")
        make_trainer(callbacks=[collector]).fit(module, datamodule=data)
        assert module.updates == 60
        runs.append(module.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize(
    ("expected", "device", "kind"), [(True, "cuda", DeviceReplay), (False, "cuda", None), (True, "cpu", None)]
)
def test_on_device_is_used_only_on_a_gpu(expected: bool, device: str, kind: type | None, make_trainer: Any) -> None:
    data = ReplayData("toys/Seeded-v0", on_device=expected)
    trainer = make_trainer()
    trainer.strategy._root_device = torch.device(device)
    data.trainer = trainer
    replay = data.train_dataloader().replay
    assert type(replay) is (kind or type(data.replay))
    assert len(replay) == len(data.replay)
    data.trainer = None
    assert data.train_dataloader().replay is data.replay


def test_batch_on_the_device_is_not_copied() -> None:
    batch = Batch(*(torch.zeros(2, 1, device="meta") for _ in range(5)))
    data = ReplayData("toys/Seeded-v0")
    assert data.transfer_batch_to_device(batch, torch.device("meta"), 0) is batch


def test_device_without_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    world = World(1, 1, 1, rows=40)
    for _ in range(20):
        world.step(0)
    monkeypatch.setattr(torch.Tensor, "to", full)
    with pytest.raises(UsageError, match=r"GB on cpu.*Reduce data\.capacity"):
        DeviceReplay(world.replay, CPU).sample()
