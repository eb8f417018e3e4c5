"""python -m benchmarks.profile: print the time of each part of a training step.

Training runs as in `python -m td3_lightning fit`, with a timer around each of PARTS. Time in a nested part counts for
the inner part only. Further flags are passed to td3_lightning:

    python -m benchmarks.profile --workloads C --steps 500 --model.gradients autograd

Manual gradients run as one traced operation. `--apart` disables the tracing, which shows their parts and makes each
step slower.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.arguments import positive_int
from benchmarks.baselines.ours import data_settings, model_settings
from benchmarks.workloads import PLAIN, WARMUP_STEPS, WORKLOADS, Workload
from td3_lightning import TD3, Collector, Replay, ReplayData
from td3_lightning.cli.app import main as run
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.fast import traced as recorded
from td3_lightning.fast.adam import FastAdam
from td3_lightning.fast.autograd_update import GradientStep
from td3_lightning.fast.manual_update import GradientPasses, ManualUpdate
from td3_lightning.fast.mlp import BatchedMLP

REST = "Lightning, logs and other code"
UPDATE = "update, between its parts"
PARTS: list[tuple[type, str, str]] = [
    (TrainingVectorEnv, "finish", "environment"),
    (Replay, "add", "storing"),
    (Replay, "sample", "sampling"),
    (TD3, "act", "acting"),
    (Collector, "_act", "exploration noise"),
    (TD3, "td_target", "target"),
    (GradientPasses, "_td_target", "target"),
    (TD3, "critic_loss", "critics: forward"),
    (ManualUpdate, "update_critics", "critics: gradients"),
    (TD3, "actor_loss", "actor: forward"),
    (ManualUpdate, "update_actor", "actor: gradients"),
    (TD3, "manual_backward", "backward"),
    (GradientStep, "backward", "backward"),
    (BatchedMLP, "backward", "backward"),
    (BatchedMLP, "grad_input", "backward"),
    (TD3, "step_critics", "Adam"),
    (TD3, "step_actor", "Adam"),
    (FastAdam, "step", "Adam"),
    (TD3, "update_targets", "Polyak averages"),
    (ManualUpdate, "update_targets", "Polyak averages"),
]
NETS = ("critics", "actor")
SHARED = ("backward", "Adam")  # parts of both the critics' and the actor's step
SETTLING_UPDATES = 100  # not measured


class Timer:
    """Measure the seconds in each part, without the parts nested in it."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open = [REST]
        self._since = time.perf_counter()
        self.net = ""  # the network of the last forward pass, to which the next backward pass belongs

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count the time inside the context for a part."""
        self._settle()
        self._open.append(part)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def read(self) -> dict[str, float]:
        """Return the seconds of every part since the last call."""
        self._settle()
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

    def _settle(self) -> None:
        now = time.perf_counter()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now


def main(args: Sequence[str] | None = None) -> int:
    """Profile the workloads and print a table."""
    options, flags = parse(args)
    columns = {name: profile(WORKLOADS[name], options.steps, flags, options.apart) for name in options.workloads}
    print(f"\nMicroseconds per step, {torch.get_num_threads()} threads:\n\n{table(columns)}\n")
    for name in options.workloads:
        sampling, acting = alone(WORKLOADS[name])
        print(f"{name}, in loops of their own: sampling a batch {sampling:.1f} us, acting {acting:.1f} us")
    return 0


def parse(args: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line: the options of this command, and the flags of td3_lightning."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(PLAIN), help="default: L C")
    parser.add_argument("--steps", type=positive_int, default=2_000, help="measured steps")
    parser.add_argument("--apart", action="store_true", help="run manual gradients in parts, not as one operation")
    return parser.parse_known_args(args)


def profile(workload: Workload, steps: int, flags: Sequence[str] = (), apart: bool = False) -> dict[str, float]:
    """Return the microseconds per step of each part."""
    timer, seconds = Timer(), dict[str, float]()
    training_step = TD3.training_step

    def step(module: TD3, batch: Any, batch_idx: int) -> Any:
        if batch_idx == SETTLING_UPDATES:
            timer.read()
        elif batch_idx == SETTLING_UPDATES + steps:
            seconds.update(timer.read())
        with timer.within(UPDATE):
            return training_step(module, batch, batch_idx)

    with ExitStack() as stack:
        stack.enter_context(patch.object(TD3, "training_step", step))
        stack.enter_context(patch.object(recorded, "CAN_TRACE", recorded.CAN_TRACE and not apart))
        for owner, name, part in PARTS:
            stack.enter_context(patch.object(owner, name, _timed(getattr(owner, name), part, timer)))
        fit(workload, SETTLING_UPDATES + steps + 1, flags)
    return {part: spent / steps * 1e6 for part, spent in seconds.items()}


def _timed(method: Callable[..., Any], part: str, timer: Timer) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        net, _, forward = part.partition(": ")
        if forward:
            timer.net = net
        with timer.within(f"{timer.net}: {part}" if part in SHARED else part):
            return method(self, *args, **kwargs)

    return call


def fit(workload: Workload, updates: int, flags: Sequence[str]) -> None:
    """Train for one epoch in a temporary folder; its output goes to stderr."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        settings = {
            "model": model_settings(workload),
            "data": data_settings(workload) | {"steps_per_epoch": updates, "eval_episodes": 1},
            "collector": {"warmup_steps": WARMUP_STEPS, "exploration_noise": workload.exploration_noise},
            "trainer": {"accelerator": "cpu", "max_epochs": 1, "default_root_dir": folder},
        }
        lines = [f"--{section}={json.dumps(values)}" for section, values in settings.items()]
        if run(["fit", *lines, *flags]):
            sys.exit(2)  # the error was printed


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return a Markdown table with a column for each workload: microseconds and share of each part, and the sum."""
    names = [
        name for _, _, part in PARTS for name in ([f"{net}: {part}" for net in NETS] if part in SHARED else [part])
    ]
    rows = [["", *columns], ["---", *["---:"] * len(columns)]]
    for name in dict.fromkeys([*names, UPDATE, REST]):
        if any(name in column for column in columns.values()):
            rows.append([name, *(_cell(column.get(name, 0.0), column) for column in columns.values())])
    rows.append(["whole step", *(f"{sum(column.values()):,.0f}" for column in columns.values())])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cell(spent: float, column: Mapping[str, float]) -> str:
    return f"{spent:,.0f} ({spent / sum(column.values()):.1%})"


def alone(workload: Workload, rows: int = 100_000, calls: int = 1_000) -> tuple[float, float]:
    """Return the microseconds to sample a batch from random rows, and to act on one observation."""
    data = ReplayData(**data_settings(workload))
    module = TD3(data.obs_dim, data.action_low, data.action_high, **model_settings(workload)).eval()
    rng = np.random.default_rng(0)
    transitions = rng.standard_normal((rows, data.obs_dim), np.float32)
    action = np.zeros(len(data.action_low), np.float32)
    for obs, next_obs in pairwise(transitions):
        data.replay.add(0, obs, action, 0.0, False, False, next_obs)
    return _microseconds(data.replay.sample, calls), _microseconds(lambda: module.act(transitions[0]), calls)


def _microseconds(call: Callable[[], Any], calls: int) -> float:
    """Return the microseconds per call: the median of five windows."""
    windows = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        windows.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(windows)


if __name__ == "__main__":
    sys.exit(main())
