"""Seeds of the package's own random generators, which are independent of the global random state."""

import zlib

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only


def derive_seed(purpose: str, index: int = 0) -> int:
    """Derive a seed from a purpose, an index, the rank of the process and the seed of `seed_everything`.

    Args:
        purpose: Use of the generator, for example "replay".
        index: Index of the environment if there are several.

    Returns:
        An integer in [0, 2**32). The same arguments give the same seed after the same `seed_everything`.
    """
    rank = getattr(rank_zero_only, "rank", None) or 0
    key = [torch.initial_seed(), rank, zlib.crc32(purpose.encode()), index]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def new_generator(purpose: str) -> torch.Generator:
    """Create a torch generator for one purpose, seeded by `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(purpose))
