"""python -m benchmarks.hindsight: time of a batch with and without Hindsight Experience Replay.

The calls of both kinds take turns, so that other load on the machine slows down both.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.arguments import positive_int
from benchmarks.machine import describe, limit_cores
from benchmarks.records import markdown_table
from td3_lightning import Hindsight, Replay
from td3_lightning.replay.hindsight import HindsightReplay
from td3_lightning.replay.ring import TRUNCATED

GOAL, OBS_DIM, ACTION_DIM, STEPS = 3, 16, 4, 50  # FetchReach


class Reach:
    """Goals of FetchReach, with its reward and its termination."""

    name, achieved, desired = "FetchReach", slice(0, GOAL), slice(GOAL, 2 * GOAL)

    def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Return 0 within 5 cm of the goal, and -1 otherwise."""
        is_far: np.ndarray = np.linalg.norm(achieved - desired, axis=-1) > 0.05
        return -is_far.astype(np.float32)

    terminated = None


def main(args: Sequence[str] | None = None) -> int:
    """Measure both kinds of batches, and print the conditions and the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hindsight", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=positive_int, default=1_000_000, help="rows in the replay buffer")
    parser.add_argument("--batch", type=positive_int, default=256, help="transitions in a batch")
    parser.add_argument("--calls", type=positive_int, default=5_000, help="measured calls of each kind")
    options = parser.parse_args(args)
    torch.set_num_threads(limit_cores(1))
    sizes = {"action_dim": ACTION_DIM, "capacity": options.rows, "batch_size": options.batch}
    kinds = {"uniform": Replay(OBS_DIM, **sizes), "hindsight": HindsightReplay(Reach(), Hindsight(), OBS_DIM, **sizes)}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for replay in kinds.values():
        fill(replay)
    for _ in range(options.calls):
        for name, replay in kinds.items():
            start = time.perf_counter()
            replay.sample()
            seconds[name].append(time.perf_counter() - start)
    conditions = describe("hindsight", 1) | {"protocol": f"{options.calls} calls of each kind, in turn"}
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    rows = [(name, f"{1e6 * statistics.median(each):.1f}", f"{1e6 * min(each):.1f}") for name, each in seconds.items()]
    print(f"\n{markdown_table(('batch', 'us, median', 'us, minimum'), rows)}")
    return 0


def fill(replay: Replay) -> None:
    """Fill a replay buffer with random episodes of 50 steps."""
    count = replay.capacity // (STEPS + 1)
    rows = np.random.default_rng(0).standard_normal((count, STEPS + 1, OBS_DIM + ACTION_DIM + 2), np.float32)
    rows[..., -1], rows[:, STEPS - 1, -1] = 0.0, TRUNCATED
    flat = torch.from_numpy(rows.reshape(-1, rows.shape[-1]))
    ring = {"written": len(flat), "running": 0, "pending": 0, "transitions": count * STEPS, "rows": [(0, flat)]}
    replay.load_state_dict({**replay.position(), "rings": [ring]})


if __name__ == "__main__":
    sys.exit(main())
