"""python -m benchmarks.td7_update AUTHOR: compare the time per update of TD7 with the author's.

AUTHOR is a checkout of https://github.com/sfujim/TD7, whose TD7.py runs unchanged. All implementations run in one
process and take turns, a block of updates each, on the same random batches of HalfCheetah's size. The environment,
sampling and priorities are not measured. The operations of the matrix products bound the speedup, because both use the
same routines for them.
"""

import argparse
import importlib
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.arguments import positive_int
from benchmarks.baselines.ours_loop import LoopTD3
from benchmarks.baselines.process import tune_process
from benchmarks.machine import describe
from benchmarks.records import markdown_table, speedup
from benchmarks.update import NUM_BATCHES, Update, measure
from td3_lightning import TD7, Batch
from td3_lightning.algorithm.sale import SALECritics

OBS_DIM, ACTION_DIM, BATCH_SIZE, WIDTH = 17, 6, 256, 256
AUTHOR = "author's update"
HEADER = ("implementation", "ms per update, median", "minimum", "speedup over the author's", "GFLOP per update")


class LoopTD7(LoopTD3, TD7):
    """TD7 without a Trainer."""


class CriticLoop(nn.Module):
    """Critics that are computed one after the other, for comparison with one batched product."""

    def __init__(self, num_critics: int) -> None:
        super().__init__()
        critics = (SALECritics(OBS_DIM, ACTION_DIM, [WIDTH, WIDTH], WIDTH, num_critics=1) for _ in range(num_critics))
        self.critics = nn.ModuleList(critics)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return Q-values (num_critics, batch)."""
        return torch.cat([critic(*inputs) for critic in self.critics])


class LoopOverCritics(LoopTD7):
    """TD7 whose critics are computed one after the other."""

    def build_networks(self) -> tuple[Any, Any]:
        """Build the actor and the critics."""
        return super().build_networks()[0], CriticLoop(2)


def main(args: Sequence[str] | None = None) -> int:
    """Measure with each number of threads, and print the conditions and one table for each."""
    options = parse(args)
    tune_process()
    tables = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        updates = implementations(options.author)
        operations = {title: count_operations(update) for title, update in updates.items()}
        seconds = measure(updates, options.blocks, options.updates)
        rows = [
            [
                title,
                f"{statistics.median(each) * 1e3:.2f}",
                f"{min(each) * 1e3:.2f}",
                speedup(seconds[AUTHOR], each),
                f"{operations[title] / 1e9:.2f}",
            ]
            for title, each in seconds.items()
        ]
        tables.append(f"## {threads} thread{'s' * (threads > 1)}\n\n{markdown_table(HEADER, rows)}")
    protocol = f"{options.blocks} blocks of {options.updates} updates each, in turn; the first block is not measured"
    conditions = describe("td7_update", max(options.threads)) | {"protocol": protocol}
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    print("\n" + "\n\n".join(tables))
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    first = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.td7_update", description=first)
    parser.add_argument("author", type=Path, help="checkout of https://github.com/sfujim/TD7")
    parser.add_argument("--threads", type=positive_int, nargs="+", default=[1, 2], help="numbers of threads")
    parser.add_argument("--blocks", type=positive_int, default=10, help="blocks measured of each implementation")
    parser.add_argument("--updates", type=positive_int, default=10, help="updates in a block")
    options = parser.parse_args(args)
    if not Path(options.author, "TD7.py").is_file():
        parser.error(f"AUTHOR must be a folder with TD7.py, got {options.author}. Clone the repository above.")
    return options


def implementations(author: Path) -> dict[str, Update]:
    """Create every implementation of the update, on the same batches."""
    batches = [random_batch(seed) for seed in range(NUM_BATCHES)]
    modules = {"td3_lightning": LoopTD7, "td3_lightning, critics in a loop": LoopOverCritics}
    return {
        **{title: our_update(kind, batches) for title, kind in modules.items()},
        AUTHOR: authors_update(author, batches),
    }


def count_operations(update: Update) -> float:
    """Return the floating-point operations of the matrix products in an update, the mean of one with the actor's."""
    with FlopCounterMode(display=False) as counter:
        for number in range(2):
            update(number)
    operations: int = counter.get_total_flops()
    return operations / 2


def our_update(kind: type[LoopTD7], batches: Sequence[Batch]) -> Update:
    """Return the training step of our module on these batches."""
    module = kind(OBS_DIM, [-1.0] * ACTION_DIM, [1.0] * ACTION_DIM)
    return lambda number: module.training_step(batches[number % NUM_BATCHES], number)


def authors_update(folder: Path, batches: Sequence[Batch]) -> Update:
    """Return `Agent.train` of the author's file on these batches; its replay buffer is replaced by them."""
    sys.path.insert(0, str(folder))
    file: Any = importlib.import_module("TD7")
    sys.path.pop(0)
    agent = file.Agent(OBS_DIM, ACTION_DIM, 1.0, hp=file.Hyperparameters(buffer_size=1000))
    agent.replay_buffer = GivenBatches(batches)
    return lambda _: agent.train()


class GivenBatches:
    """The methods of the author's replay buffer that an update calls, without priorities.

    Args:
        batches: The batches that are cycled through.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches, self.drawn = batches, 0

    def sample(self) -> tuple[Tensor, ...]:
        """Return state, action, next_state, reward and not_done, (batch, size) each."""
        batch = self.batches[self.drawn % len(self.batches)]
        self.drawn += 1
        return batch.obs, batch.action, batch.next_obs, batch.reward[:, None], batch.discount[:, None] / 0.99

    def update_priority(self, priority: Tensor) -> None:
        """Do nothing."""

    def reset_max_priority(self) -> None:
        """Do nothing."""


def random_batch(seed: int) -> Batch:
    """Draw a batch of HalfCheetah's size."""
    generator = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, BATCH_SIZE, OBS_DIM, generator=generator)
    action = 2 * torch.rand(BATCH_SIZE, ACTION_DIM, generator=generator) - 1
    reward = torch.randn(BATCH_SIZE, generator=generator)
    return Batch(obs, action, reward, torch.full((BATCH_SIZE,), 0.99), next_obs)


if __name__ == "__main__":
    sys.exit(main())
