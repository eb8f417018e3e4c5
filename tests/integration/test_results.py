"""Recompute the tables of the documentation from the committed metrics and their index."""

import re
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks import robust_laps, score_per_hour
from benchmarks.laps import read_evaluations, summarize
from benchmarks.reference import complete, first_hash, read_index, readme
from benchmarks.settings_hash import config_of, settings_hash
from benchmarks.time_to_score import read
from td3_lightning.cli import app
from td3_lightning.cli.settings import saved_settings
from td3_lightning.interop.policy import Policy
from td3_lightning.serialization.checkpoint_file import read_checkpoint

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS.parent / "lightning_logs" / "reference"
CHECKPOINTS = sorted(REFERENCE.glob("*/best.ckpt"))


GROUPS = {
    "before 89f6cbe": ["car/32", "car/61", "car_xeon/0", "car_xeon/31", "car_xeon/32"],
    "the same, bf16-mixed": ["car_xeon/4"],
    "89f6cbe and 9dbb85b": ["car_single_xeon/", "car_single/33.", "car_single/34", "car_single/35", "car_single/36"],
    "1a33ed2": ["car_single/33-"],
    "`car_fine`": ["car_fine/37.", "car_fine/38.", "car_fine/39.", "car_fine/40."],
}


@pytest.mark.parametrize("name", GROUPS)
def test_laps_of_earlier_settings_follow_from_the_metrics(name: str) -> None:
    page = (DOCS / "experiment_log.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {name}")]
    paths = [path for start in GROUPS[name] for path in (REFERENCE / "superseded").glob(f"{start}*")]
    laps = [summarize(read_evaluations(path))[5].split(" of ") for path in paths]
    whole, evaluations = (sum(int(each) for each in column) for column in zip(*laps, strict=True))
    assert f" | {len(paths)} | " in row
    assert row.endswith(f"| {whole} of {evaluations} |")


def test_table_of_the_car_follows_from_its_laps(capsys: pytest.CaptureFixture[str]) -> None:
    robust_laps.main([str(REFERENCE / "car")])
    header, _, *rows = capsys.readouterr().out.splitlines()
    page = (DOCS / "results" / "car.md").read_text()
    whole = [row.split(" | ")[3].split(" of 300")[0] for row in rows]
    assert f"{sum(map(int, whole)):,} of {300 * len(rows):,} laps" in page
    assert all(f"\n{row}\n" in page for row in (header, *rows))


def test_laps_are_counted_at_each_level_of_noise() -> None:
    def lap(level: tuple[str, str], whole: str, frames: str) -> dict[str, str]:
        return {"observation_noise": level[0], "action_noise": level[1], "lap": whole, "frames": frames}

    _, low, high = robust_laps.LEVELS
    laps = [lap(low, "1.0", "800.0"), lap(low, "1.0", "810.0"), lap(low, "0.0", "900.0"), lap(high, "0.0", "1000.0")]
    evaluations = [
        {"env_steps": str(step), "eval/lap": share, "eval/frames": frames, "eval/lap_return": value}
        for step, share, frames, value in (
            (1000, "0.97", "700", "450.0"),
            (2000, "1.0", "811", "918.9"),
            (2500, "0.98", "805", "900.1"),  # failed laps are short, and whole ones have 815 frames
            (3000, "0.98", "809", "900.7"),
        )
    ]
    assert robust_laps.summarize(evaluations, laps) == [
        *("2,000", "0 of 0", "2 of 3, 805.0 frames", "0 of 1"),
        *("98.2%", "3,000"),
    ]


def test_index_of_published_runs_is_current() -> None:
    text = (REFERENCE / "README.md").read_text()
    assert text == readme(read_index())
    assert "`lander_frames`" in text.partition("have no checkpoint")[0]


@pytest.mark.parametrize("row", read_index(), ids=lambda row: row["path"])
def test_published_runs_have_the_settings_that_ship(row: dict[str, str]) -> None:
    assert row["settings"] == first_hash(row), (
        f"configs/{config_of(row['task']).name} has changed since {row['path']} was trained. Train the task again, or "
        "move its metrics to superseded/."
    )


def test_published_checkpoints_are_found() -> None:
    assert len(CHECKPOINTS) >= 13


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.parent.name)
def test_published_checkpoint_loads(path: Path) -> None:
    """Some of them have class paths of an older version."""
    policy = Policy.load(path)
    action = policy(np.zeros(policy.obs_dim, np.float32))
    assert action.ndim == 1
    assert np.isfinite(action).all()
    config = yaml.safe_load(path.with_name("config.yaml").read_text())  # it names the modules of some environments
    assert saved_settings(read_checkpoint(path), str(path), [config], [], "test")["data"]["env_id"]


@pytest.mark.parametrize("path", sorted(REFERENCE.glob("*/config.yaml")), ids=lambda path: path.parent.name)
def test_settings_of_published_runs_are_accepted(path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(["fit", "--config", str(path), "--print_config"])
    assert not ended.value.code


def test_hash_of_settings_changes_with_values_only(tmp_path: Path) -> None:
    def hash_of(text: str) -> str:
        path = tmp_path / "task.yaml"
        path.write_text(text)
        return settings_hash(path)

    text = "data: {gamma: 0.99, wrappers: [{class_path: a.b.Noise, init_args: {std: 0.1}}]}\nseed_everything: 1\n"
    same = "# note\nseed_everything: 2\ndata: {wrappers: [{init_args: {std: 0.1}, class_path: Noise}], gamma: 0.99}\n"
    assert hash_of(text) == hash_of(same)
    assert len({hash_of(text), hash_of(text.replace("0.1", "0.2")), hash_of(text.replace("Noise", "Other"))}) == 3


RUNS = ["halfcheetah 701", "halfcheetah 702", "hopper 714", "walker2d 715", "walker2d 717", "ant 716", "ant 718"]
RUNS += [
    "td7_halfcheetah 1",
    "td7_halfcheetah 2",
    "td7_halfcheetah 1201",
    "td7_walker2d 1",
    "td7_walker2d 2",
    "td7_ant 1",
]


@pytest.mark.parametrize("run", RUNS)
def test_mujoco_tables_follow_from_the_metrics(run: str) -> None:
    task, seed = run.split()
    page = (DOCS / "results" / f"{'td7' if task.startswith('td7_') else 'mujoco'}.md").read_text()
    config = task.replace("td7_", "td7/")
    (row,) = [line for line in page.splitlines() if re.match(rf"\| `{config}\.yaml`, seed {seed}\b", line)]
    runs = [evaluations(path) for path in sorted((REFERENCE / task).rglob("*.csv.gz"))]
    assert sum(f"| {cells} |" in row for cells in runs) == 1


def evaluations(path: Path) -> str:
    """Return the steps, the best evaluation and the mean of the last ten of a run, as cells of a table."""
    returns = {int(each["env_steps"]): float(each["eval/return_mean"]) for each in read_evaluations(path)}
    step = max(returns, key=lambda step: returns[step])
    last = list(returns.values())[-10:]
    return f"{max(returns):,} | {returns[step]:,.1f}, {step:,} | {sum(last) / 10:,.1f}"


def test_first_scores_of_the_lander_follow_from_the_metrics() -> None:
    page = (DOCS / "results" / "lander.md").read_text()
    paths = [path for task in ("lander", "lander_frames", "td7_lander") for path in (REFERENCE / task).rglob("*.gz")]
    assert len(paths) == 12
    for path in paths:
        step = next(int(row["env_steps"]) for row in read_evaluations(path) if float(row["eval/return_mean"]) > 200)
        (row,) = re.findall(rf"^\| \[?{path.name.split('.')[0]}\b(?!, after).*", page, re.MULTILINE)
        assert f"| {step:,} " in row, path


def test_rows_of_td3_beside_td7_follow_from_the_metrics() -> None:
    page = (DOCS / "results" / "td7.md").read_text()
    for run in ("halfcheetah 701", "halfcheetah 702", "walker2d 715", "walker2d 717", "ant 716", "ant 718"):
        task, seed = run.split()
        path = REFERENCE / task / "seeds" / f"{seed}.csv.gz"
        returns = {int(each["env_steps"]): float(each["eval/return_mean"]) for each in read_evaluations(path)}
        returns = {step: value for step, value in returns.items() if step <= 301_000}
        step, last = max(returns, key=lambda step: returns[step]), list(returns.values())
        cells = f"{returns[step]:,.1f}, {step:,} | {sum(last[-10:]) / 10:,.1f} | {last[-1]:,.1f}"
        assert f"[{seed}](mujoco.md) | {cells} |\n" in page, run


def test_table_of_the_ablation_follows_from_the_metrics() -> None:
    page = (DOCS / "results" / "td7.md").read_text()
    files = {path.name.split(".")[0]: path for path in (REFERENCE / "td7_ablation").rglob("*.csv.gz")}
    files |= {seed: REFERENCE / "td7_halfcheetah" / "seeds" / f"{seed}.csv.gz" for seed in ("1", "2")}
    assert len(files) == 7
    for path in files.values():
        returns = {int(each["env_steps"]): float(each["eval/return_mean"]) for each in read_evaluations(path)}
        *_, last = values = [value for step, value in returns.items() if step <= 100_000]
        first = next(step for step, value in returns.items() if value >= 4_000)
        assert f" | {sum(values[-5:]) / 5:,.1f} | {last:,.1f} | {first:,} | " in page, path


@pytest.mark.parametrize(
    ("results", "agents", "minutes"),
    [
        ("score_per_hour/halfcheetah", 4, [10, 15, 20]),
        ("score_per_hour_family_26/halfcheetah", 4, [5, 8, 12]),
        ("score_per_hour_libraries/halfcheetah", 5, [3, 5, 10]),
        ("score_per_hour_libraries/ant", 4, [5, 10, 15]),
        ("score_per_hour_batch/halfcheetah", 1, [3, 5, 10]),
        ("score_per_hour_30/walker2d", 2, [10, 15, 20, 30]),
    ],
)
def test_returns_per_hour_follow_from_the_evaluations(results: str, agents: int, minutes: list[float]) -> None:
    files = sorted((DOCS.parent / "benchmarks" / "results" / results).glob("*/evaluations.jsonl"))
    runs = {name: [read(path) for path in group] for name, group in groupby(files, lambda path: path.parent.name[:-3])}
    assert len(runs) == agents
    assert score_per_hour.table(runs, minutes) in (DOCS / "results" / "score_per_hour.md").read_text()


def test_index_follows_from_the_metrics() -> None:
    assert read_index() == [complete(row) for row in read_index()]


@pytest.mark.parametrize(("lap", "frames", "passed"), [(0.98, 809.9, True), (1.0, 810.0, False), (0.97, 700.0, False)])
def test_limit_of_frames_is_exclusive(lap: float, frames: float, passed: bool) -> None:
    evaluation = {"eval/lap": str(lap), "eval/lap_return": str(lap * (1000 - frames / 10))}
    assert robust_laps.passes(evaluation) is passed
