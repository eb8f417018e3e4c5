"""Seeds of the package's own random generators, which are independent of the global random state."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.seed import isolate_rng

VARIABLE = "PL_GLOBAL_SEED"  # of the environment; Lightning's seed_everything sets it, also for processes it starts


def run_seed() -> int:
    """Return the seed of the last `seed_everything`, or torch's initial seed without one.

    Code of the user, such as an environment, may seed torch at any time. This does not change the seed of a run.
    """
    return int(os.environ.get(VARIABLE) or torch.initial_seed())


def derive_seed(purpose: str, index: int = 0, seed: int | None = None) -> int:
    """Derive a seed from a purpose, an index, the rank of the process and the seed of the run.

    Args:
        purpose: Use of the generator, for example "replay".
        index: Index of the environment if there are several.
        seed: Seed of the run, an earlier result of `run_seed`; the current one by default.

    Returns:
        An integer in [0, 2**32). The same arguments give the same seed after the same `seed_everything`.
    """
    rank = getattr(rank_zero_only, "rank", None) or 0
    key = [run_seed() if seed is None else seed, rank, zlib.crc32(purpose.encode()), index]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def new_generator(purpose: str) -> torch.Generator:
    """Create a torch generator for one purpose, seeded by `derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(purpose))


@contextmanager
def isolated_seed() -> Iterator[None]:
    """Restore torch's global state and the seed of the run after code of the user, such as a constructor."""
    seed, device = os.environ.get(VARIABLE), torch.get_default_device()
    try:
        with isolate_rng(), torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        if torch.get_default_device() != device:  # None is faster than the CPU
            torch.set_default_device(None if device.type == "cpu" else device)
        os.environ.pop(VARIABLE, None)
        if seed is not None:
            os.environ[VARIABLE] = seed
