"""Batches with a share from a dataset."""

from typing import Any

import pytest

import recorded
from td3_lightning import Dataset, Linear
from td3_lightning.replay.batch import MixedReplay
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.episodes import fill


@pytest.mark.parametrize(("share", "counts"), [(0, (10, 0)), (0.25, (8, 2)), (0.5, (5, 5)), (1, (0, 10))])
def test_each_batch_has_the_share_of_the_dataset(share: float, counts: tuple[int, int]) -> None:
    assert (Dataset("recorded-v0", share).split(10)) == counts
    own, dataset = (Replay(3, 1, capacity=40, batch_size=max(count, 1)) for count in counts)
    fill(own, recorded.episodes(seed=0))
    fill(dataset, recorded.episodes(seed=1))
    mixed = MixedReplay(own, dataset, counts)
    of_dataset = {reward for episode in recorded.episodes(seed=1) for reward in episode.reward.astype("f4").tolist()}
    for _ in range(5):
        batch = mixed.sample()
        assert [reward in of_dataset for reward in batch.reward.tolist()] == [False] * counts[0] + [True] * counts[1]
        assert [len(column) for column in batch] == [10] * 5


def test_both_parts_have_the_n_of_the_schedule() -> None:
    settings: Any = {"capacity": 40, "batch_size": 200, "gamma": 0.5, "n_step": Linear(3, 1, 100)}
    own, dataset = (Replay(3, 1, **settings) for _ in range(2))
    for replay in own, dataset:
        fill(replay, recorded.episodes())
    mixed = MixedReplay(own, dataset, (200, 200))
    for stored, n in ((0, 3), (50, 2), (100, 1)):
        own.steps_stored = stored
        for part in mixed.sample().discount.split(200):
            assert set(part.tolist()) == {0.0, *(0.5**steps for steps in range(1, n + 1))}
