"""Tables of the documentation that are recomputed from the committed metrics."""

import re
from pathlib import Path

import pytest

from benchmarks import reference
from benchmarks.laps import HEADER, main, read_evaluations, summarize

DOCS = Path(__file__).parent.parent / "docs"
LINK = re.compile(r"\[[^\]]*\]\(([^)]*\.csv\.gz)\)")


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
        ("halfcheetah/seeds/701", "`halfcheetah.yaml`, seed 701"),
        ("hopper/seeds/714", "`hopper.yaml`, seed 714"),
        ("walker2d/seeds/715", "`walker2d.yaml`, seed 715"),
        ("walker2d/seeds/717", "`walker2d.yaml`, seed 717"),
        ("ant/seeds/716", "`ant.yaml`, seed 716"),
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


# The index of the published runs.


def test_index_and_readme_follow_from_the_metrics() -> None:
    rows = reference.read_index()
    assert [reference.complete(row) for row in rows] == rows
    assert (reference.REFERENCE / "README.md").read_text() == reference.readme(rows)


def test_index_lists_every_metrics_file() -> None:
    paths = [row["path"] for row in reference.read_index()]
    found = [str(path.relative_to(reference.REFERENCE)) for path in reference.REFERENCE.rglob("*.csv.gz")]
    assert sorted(paths) == sorted(found)
    for row in reference.read_index():
        assert row["path"].removeprefix("superseded/").startswith(f"{row['task']}/")
        assert re.match(rf"{row['seed']}\b", Path(row["path"]).name), row["path"]


def test_commits_and_cpus_agree_with_the_results() -> None:
    (table,) = [
        text
        for text in (DOCS / "results.md").read_text().split("\n\n")
        if text.startswith("| run | seeds | commit | CPU |")
    ]
    commits = {row["added_by"] for row in reference.read_index() if re.search("published", row["note"])}
    stopped = {row["added_by"] for row in reference.read_index() if row["task"].startswith("original_")}
    published = {row["task"] for row in reference.read_index() if "published" in row["note"]}
    assert {task for task in published if not task.startswith("original_")} <= set(re.findall(r"\[(\w+)\]", table))
    assert commits - stopped <= set(re.findall(r"\b[0-9a-f]{7}\b", table))


def test_published_files_have_one_layout() -> None:
    of_a_task = r"config\.yaml|best\.ckpt|curve\.png|\w+\.gif|seeds/[\w-]+\.csv\.gz"
    layout = rf"index\.csv|README\.md|superseded/\w+/.*|\w+/({of_a_task})"
    paths = [str(path.relative_to(reference.REFERENCE)) for path in reference.published_files()]
    assert [path for path in paths if not re.fullmatch(layout, path)] == []
    tasks = {path.split("/")[0] for path in paths if path.endswith("/config.yaml")}
    assert tasks == {path.split("/")[0] for path in paths if "/seeds/" in path and not path.startswith("superseded")}


def test_published_files_are_under_40_megabytes() -> None:
    assert sum(path.stat().st_size for path in reference.published_files()) < reference.MAX_BYTES
