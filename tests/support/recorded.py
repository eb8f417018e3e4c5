"""Small recorded datasets with predictable numbers."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box

from td3_lightning.replay.dataset_writer import write_dataset
from td3_lightning.replay.episodes import RecordedEpisode

LENGTHS = (5, 1, 7, 4)  # steps of the episodes


def episodes(obs_dim: int = 3, bounds: Sequence[float] = (2.0,), seed: int = 0) -> list[RecordedEpisode]:
    """Return episodes of random numbers. Every second one terminates, and the others are truncated."""
    rng = np.random.default_rng(seed)
    high = np.array(bounds, np.float32)
    return [
        RecordedEpisode(
            rng.normal(size=(steps + 1, obs_dim)).astype(np.float32),
            rng.uniform(-high, high, (steps, len(high))).astype(np.float32),
            rng.normal(size=steps),
            terminated=number % 2 == 0,
            truncated=number % 2 == 1,
        )
        for number, steps in enumerate(LENGTHS)
    ]


def write(root: Path, name: str = "recorded-v0", obs_dim: int = 3, bounds: Sequence[float] = (2.0,)) -> Path:
    """Write the episodes as a dataset below a folder, which becomes Minari's, unless it exists; return its data."""
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    folder = root / name
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        high = np.array(bounds, np.float32)
        spaces = Box(-np.inf, np.inf, (obs_dim,), np.float32), Box(-high, high)
        write_dataset(name, episodes(obs_dim, bounds), *spaces, "TD3", "a test")
    return folder / "data"
