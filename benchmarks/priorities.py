"""python -m benchmarks.priorities: time per update of uniform and prioritized sampling, and the size of a checkpoint.

The calls of all kinds take turns, so that other load on the machine slows down all of them.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.arguments import exit_on_usage_errors, positive_int
from benchmarks.machine import describe, limit_cores
from benchmarks.records import markdown_table
from td3_lightning import Replay
from td3_lightning.checkpointing.replay_segments import Segments

OBS_DIM, ACTION_DIM, ALPHA = 17, 6, 0.4  # HalfCheetah; the exponent of the paper
RESET, RESET_INTERVAL = "reset_max_priority, every 250 updates", 250


def main(args: Sequence[str] | None = None) -> int:
    """Measure the calls and a save, and print the conditions and the tables."""
    options = parse(args)
    torch.set_num_threads(limit_cores(1))
    with exit_on_usage_errors():
        uniform, prioritized = (filled(options, alpha) for alpha in (0.0, ALPHA))
    seconds = measure(uniform, prioritized, options)
    conditions = describe("priorities", 1) | {"protocol": f"{options.calls} calls of each kind, in turn"}
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    print(f"\n{table(seconds)}\n\n{saves({'uniform': uniform, 'prioritized': prioritized})}")
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.priorities", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=positive_int, default=1_000_000, help="rows in the replay buffer")
    parser.add_argument("--batch", type=positive_int, default=256, help="transitions in a batch")
    parser.add_argument("--calls", type=positive_int, default=2_000, help="measured calls of each kind")
    return parser.parse_args(args)


def filled(options: argparse.Namespace, alpha: float) -> Replay:
    """Create a full replay buffer in the middle of an episode, with random rows and priorities."""
    replay = Replay(OBS_DIM, ACTION_DIM, options.rows, options.batch, priority_alpha=alpha)
    rng, transitions = np.random.default_rng(0), options.rows - 1
    rows = torch.from_numpy(rng.standard_normal((options.rows, replay.rows.shape[1]), np.float32))
    rows[:, -1] = 0.0  # no step ends an episode
    rows[-1, :OBS_DIM] = 0.0  # the observation with which `add` continues
    ring = {"written": transitions, "running": 1, "pending": 0, "transitions": transitions, "rows": [(0, rows)]}
    errors = torch.from_numpy(np.abs(rng.standard_cauchy(transitions)).astype(np.float32))
    priorities = {"largest": 1.0, "rings": [errors.clamp(min=1) ** ALPHA]}
    replay.load_state_dict({**replay.position(), "rings": [ring], "priorities": priorities})
    return replay


def add(replay: Replay, obs: np.ndarray = np.zeros(OBS_DIM, np.float32)) -> None:  # noqa: B008  # read only
    """Add one step."""
    replay.add(0, obs, obs[:ACTION_DIM], 0.0, False, False, obs)


def measure(uniform: Replay, prioritized: Replay, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of every call by its name."""
    errors = np.abs(np.random.default_rng(1).standard_cauchy((64, options.batch))).astype(np.float32)
    assert prioritized.priorities is not None
    priorities = prioritized.priorities
    batches, calls = list(torch.from_numpy(errors)), range(options.calls)
    prioritized.sample()
    steps: dict[str, Callable[[int], object]] = {
        "update_priorities": lambda call: priorities.update(batches[call % 64]),
        "add, uniform": lambda call: add(uniform),
        "add, prioritized": lambda call: add(prioritized),
        "sample, uniform": lambda call: uniform.sample(),
        "sample, prioritized, after one new row": lambda call: prioritized.sample(),
        "sample, prioritized": lambda call: prioritized.sample(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*steps, RESET)}
    for call in calls:
        for name, step in steps.items():
            start = time.perf_counter()
            step(call)
            seconds[name].append(time.perf_counter() - start)
        if call % RESET_INTERVAL == 0:
            start = time.perf_counter()
            priorities.reset_max_priority()
            seconds[RESET].append(time.perf_counter() - start)
    return seconds


def table(seconds: Mapping[str, list[float]]) -> str:
    """Return the medians and minima in microseconds."""
    rows = [(name, f"{1e6 * statistics.median(each):.1f}", f"{1e6 * min(each):.1f}") for name, each in seconds.items()]
    return markdown_table(("call", "us, median", "us, minimum"), rows)


def saves(replays: Mapping[str, Replay]) -> str:
    """Save each replay buffer twice, and return the time and the size of the second file, after 5,000 new rows."""
    rows = []
    for name, replay in replays.items():
        with tempfile.TemporaryDirectory() as folder:
            store, path = Segments(Path(folder, "replay"), 0), Path(folder, "state.pt")
            store.save(replay)
            for _ in range(min(5_000, replay.capacity)):
                add(replay)
            start = time.perf_counter()
            torch.save(store.save(replay), path)
            seconds = time.perf_counter() - start
            rows.append((name, f"{seconds:.4f}", f"{path.stat().st_size / 1e6:.3f}"))
    return markdown_table(("save after 5,000 new rows", "seconds", "MB in the checkpoint"), rows)


if __name__ == "__main__":
    sys.exit(main())
