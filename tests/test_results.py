"""Tables of the documentation that are recomputed from the committed metrics."""

import re
from pathlib import Path

import pytest

from benchmarks.laps import HEADER, main, read_evaluations, summarize

DOCS = Path(__file__).parent.parent / "docs"
LINK = re.compile(r"\[[^\]]*\]\(([^)]*metrics[^)]*\.csv\.gz)\)")


def rows_of_laps(page: Path) -> list[tuple[Path, list[str]]]:
    """Return the metrics file and the other cells of each row of the tables with the header of benchmarks.laps."""
    lines = [[cell.strip() for cell in line.strip("|\n ").split(" | ")] for line in page.open() if line.startswith("|")]
    found = []
    for cells in lines:
        link = LINK.search(cells[0])
        if link and len(cells) == 1 + len(HEADER):
            found.append((page.parent / link[1], cells[1:]))
    return found


@pytest.mark.parametrize(("page", "rows"), [("results.md", 17), ("experiment_log.md", 9)])
def test_every_row_of_laps_follows_from_its_metrics(page: str, rows: int) -> None:
    found = rows_of_laps(DOCS / page)
    assert len(found) >= rows
    for path, cells in found:
        assert cells == summarize(read_evaluations(path)), path.name


@pytest.mark.parametrize(
    ("metrics", "run"),
    [
        ("halfcheetah/metrics", "`halfcheetah.yaml`, seed 701"),
        ("hopper/metrics", "`hopper.yaml`, seed 714"),
        ("walker2d/metrics", "`walker2d.yaml`, seed 715"),
        ("walker2d/metrics_seed_717", "`walker2d.yaml`, seed 717"),
        ("ant/metrics", "`ant.yaml`, seed 716"),
    ],
)
def test_every_evaluation_of_mujoco_follows_from_its_metrics(metrics: str, run: str) -> None:
    path = DOCS.parent / "lightning_logs" / "reference" / f"{metrics}.csv.gz"
    returns = {int(each["env_steps"]): float(each["eval/return_mean"]) for each in read_evaluations(path)}
    step = max(returns, key=lambda step: returns[step])
    last = list(returns.values())[-10:]
    (row,) = [line for line in (DOCS / "results.md").read_text().splitlines() if line.startswith(f"| {run}")]
    assert f"| {max(returns):,} | {returns[step]:,.1f}, {step:,} | {sum(last) / 10:,.1f} |" in row


def test_a_run_without_a_lap_is_summarized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = tmp_path / "metrics.csv"
    names = "env_steps,eval/return_mean,eval/frames,eval/tiles,eval/tiles_total"
    metrics.write_text(f"{names}\n2000,10.5,1000,30,322\n2250,,,,\n4500,920.0,800,322,322\n7000,90.0,1000,300,322\n")
    assert main([str(metrics)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split(" | ")[1:] == [
        *("920.0", "800", "4,500", "4,500", "4,500"),
        *("1 of 3", "1", "90.0 |"),
    ]
    assert summarize(read_evaluations(metrics)[:1])[3:6] == ["never", "never", "0 of 1"]
