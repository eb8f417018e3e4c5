"""python -m benchmarks.results: runs a configuration on several random seeds, and makes a table and a plot of them.

    python -m benchmarks.results --config pendulum.yaml --seeds 1 2 3
    python -m benchmarks.results --config car.yaml --seeds 1 2 3 4 5 --jobs 2 --data.batch_size 512

Further flags are td3_lightning's own. Started again with the same ones, it goes on: finished runs stand, others
continue from their last checkpoint. A run that failed is run again, and until it succeeds it is in the table as it
ended.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.aggregate import FEWEST_FOR_AN_INTERVAL, bootstrap_interval, interquartile_mean, mean_and_std
from td3_lightning.config_files import find_config
from td3_lightning.errors import UsageError
from td3_lightning.run_logger import read_metrics

COMMAND = [sys.executable, "-m", "td3_lightning"]
MEAN = "eval/return_mean"
Points = NDArray[np.float64]  # (n, 2), env_steps and return


@dataclass(frozen=True)
class Run:
    """One seed's run, as its folder tells it."""

    seed: int
    folder: Path

    @property
    def record(self) -> dict[str, float | int | str]:
        """How it ended: `seconds` over all its attempts, `exit_code`, and its last words; empty before it began."""
        path = self.folder / "run.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @property
    def finished(self) -> bool:
        """Whether it went to its end."""
        return self.record.get("exit_code") == 0

    @property
    def ended(self) -> bool:
        """Whether it finished or failed, and was not merely stopped."""
        return bool(self.record) and self.record["exit_code"] not in STOPPED

    @property
    def state(self) -> str:
        """How it stands, in words."""
        if not self.ended:
            return "unfinished" if self.folder.exists() else "not begun"
        return "" if self.finished else f"failed: {self.record['last_line']}"

    @property
    def evaluations(self) -> Points:
        """The mean return of each evaluation, over all attempts; where they overlap, the later one counts."""
        merged: dict[float, float] = {}
        for path in self._versions("metrics.csv"):
            points = read_metrics(path, [MEAN])[MEAN]
            if len(points):
                merged = {step: value for step, value in merged.items() if step < points[0, 0]}
                merged.update({float(step): float(value) for step, value in points})
        return np.array(sorted(merged.items())).reshape(-1, 2)

    @property
    def last_checkpoint(self) -> Path | None:
        """What it goes on from."""
        return next(reversed(self._versions("checkpoints/last.ckpt")), None)

    def _versions(self, name: str) -> list[Path]:
        """The file of each attempt that has it, the oldest first."""
        paths = self.folder.glob(f"version_*/{name}")
        return sorted(paths, key=lambda path: int(path.relative_to(self.folder).parts[0].removeprefix("version_")))

    def go(self, config: str, flags: Sequence[str], threads: int) -> None:
        """Runs it to its end from where it stands, and records how that was."""
        if self.finished:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ["--name", str(self.folder.relative_to("lightning_logs"))]
        if self.last_checkpoint is not None:  # whose folder the run goes on in
            where = ["--ckpt_path", str(self.last_checkpoint)]
        command = [*COMMAND, "fit", "--config", config, *flags, "--seed_everything", str(self.seed), *where]
        spent, begun, log = float(self.record.get("seconds", 0.0)), time.monotonic(), self.folder / "log.txt"
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with log.open("a") as file:
            # A session of its own: a signal reaches it once, from here.
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            RUNNING.add(process)
            code = process.wait()
            RUNNING.discard(process)
        said = [line for line in log.read_text().splitlines() if line.strip()]
        record = {
            "command": shlex.join(["python", *command[1:]]),
            "exit_code": code,
            "seconds": spent + time.monotonic() - begun,
            "last_line": said[-1] if said else "",
        }
        (self.folder / "run.json").write_text(json.dumps(record, indent=1))


RUNNING: set[subprocess.Popen[bytes]] = set()
STOPPED = {-signal.SIGINT, -signal.SIGTERM, 130, 143, 75}


def main(args: Sequence[str] | None = None) -> int:
    """Runs what is not finished, then writes and prints the results."""
    options, flags = parse(args)
    folder = Path("lightning_logs", "results", options.config.removesuffix(".yaml").replace("/", "_"))
    try:
        keep_settings(folder, options.config, flags)
    except UsageError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    runs = [Run(seed, folder / f"seed_{seed}") for seed in options.seeds]
    threads = max(len(os.sched_getaffinity(0)) // options.jobs, 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            list(pool.map(lambda run: run.go(options.config, flags, threads), runs))
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # what follows takes a moment
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                process.terminate()
            print("The runs are saved and stopped; the same command goes on with them.", file=sys.stderr)
            return 130
    write(folder, shlex.join([options.config, *flags]) + f" on {len(runs)} seeds", runs)
    return 0 if all(run.finished for run in runs) else 1


def parse(args: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Reads the command line: our options, and what is td3_lightning's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", required=True, help="configuration, found as td3_lightning finds it")
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="random seeds, a run each")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, which share the cores")
    return parser.parse_known_args(args)


def keep_settings(folder: Path, config: str, flags: Sequence[str]) -> None:
    """Notes what the runs in a folder are of; raises `UsageError` if there are runs of something else in it."""
    path, now = folder / "settings.json", {"flags": list(flags), "config": find_config(config).read_text()}
    before = json.loads(path.read_text()) if path.exists() else now
    if before != now:
        what = (
            f"with the flags {shlex.join(before['flags'])!r}" if before["flags"] != now["flags"] else "as it was then"
        )
        raise UsageError(
            f"{folder} holds runs of {config} {what}, but {shlex.join([config, *flags])!r} came; move that folder away "
            "for others."
        )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(now, indent=1))


def write(folder: Path, title: str, runs: Sequence[Run]) -> None:
    """Writes results.md and results.png into the folder, and prints the table."""
    text = f"# {title}\n\n{table(runs)}\n\n{summary(runs)}\n"
    (folder / "results.md").write_text(text)
    draw(runs, title).savefig(folder / "results.png")
    print(f"{text}\n{folder / 'results.md'}, {folder / 'results.png'}")


def table(runs: Sequence[Run]) -> str:
    """A Markdown table with a row for each seed."""
    rows = [["seed", "final", "maximum", "at", "env_steps", "wall time", ""], [*["---:"] * 6, "---"]]
    for run in runs:
        numbers = ["-"] * 4
        if len(points := run.evaluations):
            best = points[points[:, 1].argmax()]
            numbers = [f"{points[-1, 1]:,.2f}", f"{best[1]:,.2f}", f"{best[0]:,.0f}", f"{points[-1, 0]:,.0f}"]
        rows.append([str(run.seed), *numbers, _duration(float(run.record.get("seconds", 0))), run.state])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def summary(runs: Sequence[Run]) -> str:
    """The numbers over the seeds that ended, the failed ones included."""
    counted = [run for run in runs if run.ended and len(run.evaluations)]
    lines = [f"Over {len(counted)} of {len(runs)} seeds, mean ± sample standard deviation:"]
    if not counted:
        return f"None of {len(runs)} seeds has ended with an evaluation."
    curves = [run.evaluations[:, 1] for run in counted]
    for name, scores in {"final": [curve[-1] for curve in curves], "maximum": [max(curve) for curve in curves]}.items():
        lines.append(f"- {name}: {_spread(scores)}")
    mean = mean_curve(counted)
    if len(mean):
        step, best = mean[mean[:, 1].argmax()]
        lines.append(f"- maximum of the mean curve, which the TD3 paper reports: {best:,.2f} at {step:,.0f}")
    left_out = [str(run.seed) for run in runs if run not in counted]
    if left_out:
        lines.append(f"- seeds without a result are in none of these: {', '.join(left_out)}")
    return "\n".join(lines)


def _spread(scores: Sequence[float]) -> str:
    mean, std = mean_and_std(scores)
    text = f"{mean:,.2f}" + (f" ± {std:,.2f}" if len(scores) > 1 else "")
    if len(scores) < FEWEST_FOR_AN_INTERVAL:
        return text
    low, high = bootstrap_interval(scores)
    return f"{text}; interquartile mean {interquartile_mean(scores):,.2f}, 95% interval {low:,.2f} to {high:,.2f}"


def mean_curve(runs: Sequence[Run]) -> Points:
    """The mean of the runs wherever all of them were evaluated, (n, 2)."""
    curves = [dict(run.evaluations.tolist()) for run in runs]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    return np.array([[step, np.mean([curve[step] for curve in curves])] for step in steps]).reshape(-1, 2)


def draw(runs: Sequence[Run], title: str) -> Figure:
    """Every seed's evaluations, and their mean."""
    figure = Figure(figsize=(9.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="env_steps", ylabel="mean return of an evaluation")
    for run in runs:
        axes.plot(*run.evaluations.T, lw=1, alpha=0.6, label=f"seed {run.seed}")
    mean = mean_curve([run for run in runs if run.ended])
    axes.plot(*mean.T, color="black", lw=2, label="mean of those that ended")
    axes.grid(color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    return figure


def _duration(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
