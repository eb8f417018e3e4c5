"""Report of a configuration over seeds: statistics, a picture and a CSV file."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from td3_lightning.atomic_files import atomic_write
from td3_lightning.reporting.paths import shown
from td3_lightning.reporting.pictures import write_picture
from td3_lightning.reporting.statistics import (
    MIN_SEEDS_FOR_INTERVAL,
    MIN_SEEDS_FOR_QUARTILES,
    bootstrap_interval,
    interquartile_mean,
)
from td3_lightning.tuning.plan import Plan
from td3_lightning.tuning.result import Points, Result, number, write_csv

SCORES = {"last_10": "mean of last 10", "last": "last", "best": "best"}
BLUE = "#2f6db5"


def write_report(results: Sequence[Result], plan: Plan, command: str) -> list[str]:
    """Write seeds.md, seeds.png and seeds.csv.

    Args:
        results: Results of the seeds.
        plan: Settings of all runs.
        command: Command that reproduces the report.

    Returns:
        Lines for the terminal: statistics, paths and the command.
    """
    title = f"{', '.join(map(str, plan.configs))} on {len(results)} seeds"
    lines = summary(results)
    text = "\n".join([f"# {title}", "", markdown_table(results), "", *lines, "", f"    {command}", ""])
    atomic_write(plan.folder / "seeds.md", lambda file: file.write(text.encode()))
    write_picture(plan.folder / "seeds.png", lambda: draw(results, plan.metric, title))
    write_csv(results, plan.folder / "seeds.csv")
    paths = [shown(plan.folder / f"seeds.{kind}", Path.cwd()) for kind in ("md", "png", "csv")]
    return [*lines, f"files      {', '.join(paths)}", f"reproduce  {command}"]


def markdown_table(results: Sequence[Result]) -> str:
    """Return a Markdown table with one row for each seed."""
    rows = [
        ["run", results[0].clock, "best", "last", "mean of last 10", "state", "wall time"],
        ["---", *["---:"] * 4, "---", "---:"],
    ]
    rows += [[*result.row(), str(timedelta(seconds=int(result.seconds or 0)))] for result in results]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def ended(results: Sequence[Result]) -> list[Result]:
    """Return the results that count: complete and failed runs with at least one evaluation."""
    return [result for result in results if result.state in ("finished", "failed") and len(result.points)]


def summary(results: Sequence[Result]) -> list[str]:
    """Return the statistics over the seeds that ended, failed ones included, one line each."""
    counted = ended(results)
    if not counted:
        return [f"No result yet: none of {len(results)} seeds has ended with an evaluation."]
    lines = [f"Over {len(counted)} of {len(results)} seeds, mean ± sample standard deviation:"]
    lines += [f"- {title}: {_spread([each.values[name] for each in counted])}" for name, title in SCORES.items()]
    steps, scores = common_curves([result.points for result in counted])
    if len(steps):
        mean = scores.mean(axis=1)
        top = mean.argmax() if counted[0].mode == "max" else mean.argmin()
        best = f"{mean[top]:,.2f} at {steps[top]:,.0f}"
        extent = f"{len(steps)} evaluations that all seeds have, up to {steps[-1]:,.0f}"
        lines.append(f"- best of the mean curve, which the TD3 paper reports: {best}; it has the {extent}")
    else:
        lines.append("- no mean curve, because no evaluation is at the same step of all seeds")
    left_out = [result.label for result in results if result not in counted]
    return [*lines, f"- not counted, without a result: {', '.join(left_out)}"] if left_out else lines


def _spread(scores: Sequence[float]) -> str:
    text = number(float(np.mean(scores))) + (f" ± {np.std(scores, ddof=1):,.2f}" if len(scores) > 1 else "")
    if len(scores) < MIN_SEEDS_FOR_INTERVAL:
        return text
    low, high = bootstrap_interval(scores)
    return f"{text}; interquartile mean {interquartile_mean(scores):,.2f}, 95% interval {low:,.2f} to {high:,.2f}"


def common_curves(curves: Sequence[Points]) -> tuple[Points, Points]:
    """Return the steps at which every run was evaluated, (n,), and the scores of the runs there, (n, runs)."""
    held = [dict(points.tolist()) for points in curves]
    steps = sorted(set.intersection(*map(set, held))) if held else []
    scores = [[curve[step] for curve in held] for step in steps]
    return np.array(steps), np.array(scores, dtype=np.float64).reshape(len(steps), len(curves))


def draw(results: Sequence[Result], metric: str, title: str) -> Figure:
    """Draw the curve of every seed, and their interquartile mean with its 95% interval; few seeds have a mean."""
    figure = Figure(figsize=(9.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot(xlabel=results[0].clock, ylabel=metric)
    axes.set_title(title)
    for result in results:
        style, state = ("-", "") if result.state == "finished" else (":", f" ({result.state})")
        axes.plot(*result.points.T, style, lw=0.8, alpha=0.5, label=f"{result.label}{state}")
    counted = [result.points for result in ended(results)]
    steps, scores = common_curves(counted)
    if len(steps):
        interval = ", 95% interval" if len(counted) >= MIN_SEEDS_FOR_INTERVAL else ""
        kind = "interquartile mean" if len(counted) >= MIN_SEEDS_FOR_QUARTILES else "mean"
        label = f"{kind} of {len(counted)}{interval}"
        axes.plot(steps, interquartile_mean(scores), color=BLUE, lw=2, label=label)
        if interval:
            axes.fill_between(steps, *bootstrap_interval(scores), color=BLUE, alpha=0.2, lw=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure
