"""python -m benchmarks.update: compare the time per update of td3_lightning and of the tuned CleanRL-style loop.

All implementations run in one process and take turns, a block of updates each, on the same random batches. Process-wide
settings (flushed denormals, `mallopt`) therefore apply to all of them. The environment and sampling are not measured.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.arguments import positive_int
from benchmarks.baselines.cleanrl_tuned import TunedAgent
from benchmarks.baselines.ours import data_settings, model_settings
from benchmarks.baselines.ours_loop import LoopTD3
from benchmarks.baselines.process import tune_process
from benchmarks.machine import describe, limit_cores
from benchmarks.records import markdown_table, speedup
from benchmarks.workloads import OURS_ONLY, WORKLOADS, Workload
from td3_lightning import ReplayData
from td3_lightning.algorithm import update_rules
from td3_lightning.replay.batch import Batch

TUNED = "CleanRL-style loop, tuned"
DEFAULT = ["L", "C", "L-LN", "C-LN"]
MEASURED = [name for name in WORKLOADS if name not in OURS_ONLY]
NUM_BATCHES = 64  # batches that are cycled through
AUTOGRAD = "td3_lightning, readable update"
HEADER = (
    "implementation",
    "ms per update, median",
    "minimum",
    "speedup over the tuned loop",
    "speedup over the readable update",
)
Update = Callable[[int], object]  # makes one update, given its number


def main(args: Sequence[str] | None = None) -> int:
    """Measure the workloads, and print the conditions and one table for each of them."""
    options = parse(args)
    threads = limit_cores(options.threads)
    tune_process()  # before PyTorch starts its threads, which inherit the treatment of denormals
    torch.set_num_threads(threads)
    tables = []
    for name in options.workloads:
        seconds = measure(implementations(WORKLOADS[name]), options.blocks, options.updates)
        tables.append(f"## {name}: {WORKLOADS[name].title}\n\n{table(seconds)}")
    protocol = f"{options.blocks} blocks of {options.updates} updates each, in turn; the first block is not measured"
    conditions = describe("update", threads) | {"protocol": protocol}
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    print("\n" + "\n\n".join(tables))
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.update", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--workloads", nargs="+", choices=MEASURED, default=DEFAULT, help=f"default: {' '.join(DEFAULT)}"
    )
    parser.add_argument("--threads", type=positive_int, default=len(os.sched_getaffinity(0)), help="threads")
    parser.add_argument("--blocks", type=positive_int, default=30, help="blocks measured of each implementation")
    parser.add_argument("--updates", type=positive_int, default=50, help="updates in a block")
    return parser.parse_args(args)


def implementations(workload: Workload) -> dict[str, Update]:
    """Create every implementation of the update, on the same batches."""
    data = ReplayData(**data_settings(workload))
    low, high = torch.tensor(data.action_low), torch.tensor(data.action_high)
    batches = [random_batch(workload, data.obs_dim, low, high, seed) for seed in range(NUM_BATCHES)]
    settings = data.obs_dim, data.action_low, data.action_high
    fast, readable = (LoopTD3(*settings, **model_settings(workload)) for _ in range(2))
    with patch.object(update_rules, "_factories", []):
        assert readable.update_rule is readable  # is kept, because no Trainer starts an epoch
    agent = TunedAgent(data.obs_dim, low, high, workload)
    return {
        "td3_lightning": make_update(fast, batches, workload.gamma),
        AUTOGRAD: make_update(readable, batches, workload.gamma),
        TUNED: lambda number: agent.update(batches[number % NUM_BATCHES]),
    }


def make_update(module: LoopTD3, batches: Sequence[tuple[Tensor, ...]], gamma: float) -> Update:
    """Return the training step of our module on these batches."""
    ours = [
        Batch(obs, action, reward[:, 0], gamma * (1 - terminated[:, 0]), next_obs)
        for obs, action, next_obs, reward, terminated in batches
    ]
    return lambda number: module.training_step(ours[number % NUM_BATCHES], number)


def random_batch(workload: Workload, obs_dim: int, low: Tensor, high: Tensor, seed: int) -> tuple[Tensor, ...]:
    """Draw obs, action, next_obs, reward and terminated, each (batch, size)."""
    generator, rows = torch.Generator().manual_seed(seed), workload.batch_size
    obs, next_obs = torch.randn(2, rows, obs_dim, generator=generator)
    action = low + (high - low) * torch.rand(rows, len(low), generator=generator)
    reward = torch.randn(rows, 1, generator=generator)
    terminated = (torch.rand(rows, 1, generator=generator) < 0.01).float()
    return obs, action, next_obs, reward, terminated


def measure(updates: Mapping[str, Update], blocks: int, size: int) -> dict[str, list[float]]:
    """Return the seconds per update of each block; the implementations take turns, and the order alternates."""
    seconds: dict[str, list[float]] = {title: [] for title in updates}
    for block in range(blocks + 1):
        for title in list(updates)[:: -1 if block % 2 else 1]:
            start = time.perf_counter()
            for number in range(block * size, (block + 1) * size):
                updates[title](number)
            seconds[title].append((time.perf_counter() - start) / size)
    return {title: blocks_[1:] for title, blocks_ in seconds.items()}


def table(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return a row for each implementation: medians, and the median (min to max) of ratios taken block by block."""
    rows = [
        [
            title,
            f"{statistics.median(each) * 1e3:.3f}",
            f"{min(each) * 1e3:.3f}",
            *(speedup(seconds[reference], each) for reference in (TUNED, AUTOGRAD)),
        ]
        for title, each in seconds.items()
    ]
    return markdown_table(HEADER, rows)


if __name__ == "__main__":
    sys.exit(main())
