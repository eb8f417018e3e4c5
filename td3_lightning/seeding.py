"""Seeds for the project's own generators, so that no draw rests on global random state."""

import zlib

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only


def derive_seed(purpose: str, index: int = 0) -> int:
    """A seed that differs by purpose, by index and by process, and follows `seed_everything`.

    Args:
        purpose: What the generator is for, such as "replay".
        index: Number of the environment, where there are several.

    Returns:
        An integer in [0, 2**32), the same for the same arguments after the same `seed_everything`.
    """
    rank = getattr(rank_zero_only, "rank", None) or 0
    key = [torch.initial_seed(), rank, zlib.crc32(purpose.encode()), index]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def new_generator(purpose: str) -> torch.Generator:
    """A torch generator of its own for one purpose, seeded by `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(purpose))
