"""python -m benchmarks.results: run a configuration on several random seeds, and write a table and a plot.

    python -m benchmarks.results --config pendulum.yaml --seeds 1 2 3
    python -m benchmarks.results --config car.yaml --seeds 1 2 3 4 5 --jobs 2 --data.batch_size 512

Further flags are passed to td3_lightning. The same command resumes: finished runs are kept, and the others continue
from their last checkpoint. Failed runs are started again, and stay in the table until they succeed.
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

from benchmarks.aggregate import MIN_SEEDS_FOR_INTERVAL, bootstrap_interval, interquartile_mean, mean_and_std
from td3_lightning.cli.config_files import find_config
from td3_lightning.errors import UsageError
from td3_lightning.reporting.metrics_csv import read_metrics

COMMAND = [sys.executable, "-m", "td3_lightning"]
MEAN = "eval/return_mean"
Points = NDArray[np.float64]  # (n, 2), env_steps and return


@dataclass(frozen=True)
class Run:
    """The run of one seed, read from its folder."""

    seed: int
    folder: Path

    @property
    def record(self) -> dict[str, float | int | str]:
        """Return `seconds` over all attempts, `exit_code` and `last_line`; empty before the first attempt ended."""
        path = self.folder / "run.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @property
    def finished(self) -> bool:
        """Return whether the run finished."""
        return self.record.get("exit_code") == 0

    @property
    def ended(self) -> bool:
        """Return whether the run finished or failed, as opposed to being stopped."""
        return bool(self.record) and self.record["exit_code"] not in STOPPED

    @property
    def state(self) -> str:
        """Return the state in words; empty if the run finished."""
        if not self.ended:
            return "unfinished" if self.folder.exists() else "not started"
        return "" if self.finished else f"failed: {self.record['last_line']}"

    @property
    def evaluations(self) -> Points:
        """Return the mean return of each evaluation over all attempts; a later attempt overrides an earlier one."""
        merged: dict[float, float] = {}
        for path in self._versions("metrics.csv"):
            points = read_metrics(path, [MEAN])[MEAN]
            if len(points):
                merged = {step: value for step, value in merged.items() if step < points[0, 0]}
                merged.update({float(step): float(value) for step, value in points})
        return np.array(sorted(merged.items())).reshape(-1, 2)

    @property
    def last_checkpoint(self) -> Path | None:
        """Return the checkpoint to resume from."""
        return next(reversed(self._versions("checkpoints/last.ckpt")), None)

    def _versions(self, name: str) -> list[Path]:
        """Return the file of each attempt that has it, the oldest first."""
        paths = self.folder.glob(f"version_*/{name}")
        return sorted(paths, key=lambda path: int(path.relative_to(self.folder).parts[0].removeprefix("version_")))

    def run(self, config: str, flags: Sequence[str], threads: int) -> None:
        """Run to the end from the last checkpoint, and record the result."""
        if self.finished:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ["--name", str(self.folder.relative_to("lightning_logs"))]
        if self.last_checkpoint is not None:  # a resumed run continues in its folder
            where = ["--ckpt_path", str(self.last_checkpoint)]
        command = [*COMMAND, "fit", "--config", config, *flags, "--seed_everything", str(self.seed), *where]
        spent, start, log = float(self.record.get("seconds", 0.0)), time.monotonic(), self.folder / "log.txt"
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with log.open("a") as file:
            # In its own session, the process gets a signal only once, from this one.
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            RUNNING.add(process)
            code = process.wait()
            RUNNING.discard(process)
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        record = {
            "command": shlex.join(["python", *command[1:]]),
            "exit_code": code,
            "seconds": spent + time.monotonic() - start,
            "last_line": lines[-1] if lines else "",
        }
        (self.folder / "run.json").write_text(json.dumps(record, indent=1))


RUNNING: set[subprocess.Popen[bytes]] = set()
STOPPED = {-signal.SIGINT, -signal.SIGTERM, 130, 143, 75}


def main(args: Sequence[str] | None = None) -> int:
    """Run the unfinished seeds, then write and print the results."""
    options, flags = parse(args)
    folder = Path("lightning_logs", "results", options.config.removesuffix(".yaml").replace("/", "_"))
    try:
        keep_settings(folder, options.config, flags)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    runs = [Run(seed, folder / f"seed_{seed}") for seed in options.seeds]
    threads = max(len(os.sched_getaffinity(0)) // options.jobs, 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            list(pool.map(lambda run: run.run(options.config, flags, threads), runs))
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # so that all processes are stopped
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                process.terminate()
            print("All runs are saved and stopped. The same command resumes them.", file=sys.stderr)
            return 130
    write(folder, shlex.join([options.config, *flags]) + f" on {len(runs)} seeds", runs)
    return 0 if all(run.finished for run in runs) else 1


def parse(args: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line: the options of this command, and the flags of td3_lightning."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", required=True, help="configuration file, found as by td3_lightning")
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="random seeds, one run each")
    parser.add_argument("--jobs", type=int, default=1, help="simultaneous runs; they share the cores")
    return parser.parse_known_args(args)


def keep_settings(folder: Path, config: str, flags: Sequence[str]) -> None:
    """Store the settings of the runs in a folder; raise `UsageError` if it holds runs with other settings."""
    path, now = folder / "settings.json", {"flags": list(flags), "config": find_config(config).read_text()}
    before = json.loads(path.read_text()) if path.exists() else now
    if before != now:
        required, given = f"the unchanged {config}", "another version of it"
        if before["flags"] != now["flags"]:
            required, given = (f"the flags {shlex.join(each['flags'])!r}" for each in (before, now))
        raise UsageError(f"Runs in {folder} must have {required}, got {given}. Move the folder away to start new runs.")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(now, indent=1))


def write(folder: Path, title: str, runs: Sequence[Run]) -> None:
    """Write results.md and results.png into the folder, and print the table."""
    text = f"# {title}\n\n{table(runs)}\n\n{summary(runs)}\n"
    (folder / "results.md").write_text(text)
    draw(runs, title).savefig(folder / "results.png")
    print(f"{text}\n{folder / 'results.md'}, {folder / 'results.png'}")


def table(runs: Sequence[Run]) -> str:
    """Return a Markdown table with one row for each seed."""
    rows = [["seed", "final", "maximum", "at", "env_steps", "wall time", "state"], [*["---:"] * 6, "---"]]
    for run in runs:
        numbers = ["-"] * 4
        if len(points := run.evaluations):
            best = points[points[:, 1].argmax()]
            numbers = [f"{points[-1, 1]:,.2f}", f"{best[1]:,.2f}", f"{best[0]:,.0f}", f"{points[-1, 0]:,.0f}"]
        rows.append([str(run.seed), *numbers, _duration(float(run.record.get("seconds", 0))), run.state])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def summary(runs: Sequence[Run]) -> str:
    """Return the statistics over the seeds that ended, failed ones included."""
    counted = [run for run in runs if run.ended and len(run.evaluations)]
    lines = [f"Over {len(counted)} of {len(runs)} seeds, mean ± sample standard deviation:"]
    if not counted:
        return f"No result yet: none of {len(runs)} seeds has ended with an evaluation."
    curves = [run.evaluations[:, 1] for run in counted]
    for name, scores in {"final": [curve[-1] for curve in curves], "maximum": [max(curve) for curve in curves]}.items():
        lines.append(f"- {name}: {_spread(scores)}")
    mean = mean_curve(counted)
    if len(mean):
        step, best = mean[mean[:, 1].argmax()]
        lines.append(f"- maximum of the mean curve, which the TD3 paper reports: {best:,.2f} at {step:,.0f}")
    left_out = [str(run.seed) for run in runs if run not in counted]
    if left_out:
        lines.append(f"- seeds without a result, which are not counted: {', '.join(left_out)}")
    return "\n".join(lines)


def _spread(scores: Sequence[float]) -> str:
    mean, std = mean_and_std(scores)
    text = f"{mean:,.2f}" + (f" ± {std:,.2f}" if len(scores) > 1 else "")
    if len(scores) < MIN_SEEDS_FOR_INTERVAL:
        return text
    low, high = bootstrap_interval(scores)
    return f"{text}; interquartile mean {interquartile_mean(scores):,.2f}, 95% interval {low:,.2f} to {high:,.2f}"


def mean_curve(runs: Sequence[Run]) -> Points:
    """Return the mean of the runs at the steps where all of them were evaluated, (n, 2)."""
    curves = [dict(run.evaluations.tolist()) for run in runs]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    return np.array([[step, np.mean([curve[step] for curve in curves])] for step in steps]).reshape(-1, 2)


def draw(runs: Sequence[Run], title: str) -> Figure:
    """Plot the evaluations of every seed and their mean."""
    figure = Figure(figsize=(9.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="env_steps", ylabel="mean return of an evaluation")
    for run in runs:
        axes.plot(*run.evaluations.T, lw=1, alpha=0.6, label=f"seed {run.seed}")
    mean = mean_curve([run for run in runs if run.ended])
    axes.plot(*mean.T, color="black", lw=2, label="mean of ended runs")
    axes.grid(color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    return figure


def _duration(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
