"""python -m benchmarks.latency: time per action with onnxruntime, with a pt2 file and with `act`.

The policies are those of published runs. The three calls take turns, so that other load on the machine slows down all
of them. Each call takes an observation as a NumPy array and returns the action as a NumPy array.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.arguments import positive_int
from benchmarks.machine import describe, limit_cores
from benchmarks.records import markdown_table
from benchmarks.workloads import ROOT
from td3_lightning import TD3, Policy
from td3_lightning.interop.policy_file import write_policy

RUNS = ROOT / "lightning_logs" / "reference"
UNMEASURED = 100  # first calls, which allocate memory

Act = Callable[[Any], Any]


def main(args: Sequence[str] | None = None) -> int:
    """Measure the policies, and print the conditions and the table."""
    options = parse(args)
    torch.set_num_threads(limit_cores(1))
    rows = []
    for run in options.runs:
        agent = TD3.load_from_checkpoint(RUNS / run / "best.ckpt").eval()
        widths = "-".join(map(str, agent.settings.hidden_dims))
        rows.append([run, f"{agent.obs_dim}, {widths}", *cells(measure(agent, options.calls))])
    conditions = describe("latency", 1) | {"protocol": f"{options.calls} calls of each kind, in turn; one observation"}
    print("\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    print("\nMicroseconds per action, median (minimum):\n")
    print(markdown_table(("policy", "observation, layers", "onnxruntime", "pt2", "`act`"), rows))
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--runs", nargs="+", choices=published(), default=["lander", "hopper", "car"], help="published runs"
    )
    parser.add_argument("--calls", type=positive_int, default=5_000, help="measured calls of each kind")
    return parser.parse_args(args)


def published() -> list[str]:
    """Return the runs with a checkpoint."""
    return sorted(path.parent.name for path in RUNS.glob("*/best.ckpt"))


def measure(agent: TD3, calls: int) -> dict[str, list[float]]:
    """Return the seconds of every call by the kind of the call."""
    with tempfile.TemporaryDirectory() as folder:
        acts = kinds(agent, Path(folder))
    observations = np.random.default_rng(0).standard_normal((calls + UNMEASURED, agent.obs_dim), np.float32)
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    for obs in observations:
        for name, act in acts.items():
            start = time.perf_counter()
            act(obs)
            seconds[name].append(time.perf_counter() - start)
    return {name: each[UNMEASURED:] for name, each in seconds.items()}


def kinds(agent: TD3, folder: Path) -> dict[str, Act]:
    """Return the functions from an observation (obs_dim,) to an action (action_dim,), by name."""
    for suffix in ("onnx", "pt2"):
        write_policy(agent, folder / f"policy.{suffix}", {})
    module = torch.export.load(folder / "policy.pt2").module()

    @torch.inference_mode()
    def pt2(obs: Any) -> Any:
        return module(torch.from_numpy(obs)[None])[0].numpy()

    return {"onnxruntime": Policy.load(folder / "policy.onnx"), "pt2": pt2, "act": agent.act}


def cells(seconds: Mapping[str, list[float]]) -> list[str]:
    """Return the median and the minimum in microseconds of each kind."""
    return [f"{1e6 * statistics.median(each):.0f} ({1e6 * min(each):.0f})" for each in seconds.values()]


if __name__ == "__main__":
    sys.exit(main())
