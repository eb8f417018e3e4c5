"""Test that `RunLogger` writes all metrics to `metrics.csv` and to TensorBoard events, and creates no file earlier."""

import csv
import math
import os
import resource
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import toys  # noqa: F401
from td3_lightning import TD3, Collector, Linear, ReplayData
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.metrics_csv import MetricsFile, read_metrics
from tests.training.test_collector import Kept


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


def test_every_call_writes_a_row_and_events(make_trainer: Any, tmp_path: Path) -> None:
    logger, notebook = RunLogger(str(tmp_path), "counter"), Kept()
    data = ReplayData("toys/Counter-v0", steps_per_epoch=20, batch_size=4, capacity=100, eval_episodes=2)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), actor_lr=Linear(1e-3, 0, 50))
    trainer: L.Trainer = make_trainer(
        max_epochs=2, logger=[logger, notebook], callbacks=[Collector(7)], log_every_n_steps=3
    )
    trainer.fit(module, datamodule=data)

    expected = [
        {"env_steps": float(step)} | {name: float(value) for name, value in metrics.items()}
        for step, metrics in notebook.lines
    ]
    written = rows(logger.metrics.path)
    assert [{name: float(cell) for name, cell in row.items() if cell} for row in written] == expected
    assert len(written) == logger.metrics.rows == len(notebook.lines)
    assert logger.metrics.path == tmp_path / "counter" / "version_0" / "metrics.csv"

    # Episodes have 5 steps with the rewards 10 * episode + 1, 2, ... 5. The first training episode is number 0.
    series = read_metrics(logger.metrics.path, ["train/return", "eval/return_mean", "eval/return_max"])
    np.testing.assert_array_equal(series["train/return"][:3], [[5, 15], [10, 65], [15, 115]])
    np.testing.assert_array_equal(series["eval/return_mean"], [[27, 40], [47, 140]])
    np.testing.assert_array_equal(series["eval/return_max"], [[27, 65], [47, 165]])

    events = EventAccumulator(str(logger.metrics.path.parent)).Reload()
    for name in set(written[0]) - {"env_steps"}:
        pairs = [(int(row["env_steps"]), np.float32(row[name])) for row in written if row[name]]
        assert [(event.step, np.float32(event.value)) for event in events.Scalars(name)] == pairs
    assert "env_steps" not in events.Tags()["scalars"]

    hparams = yaml.safe_load((logger.metrics.path.parent / "hparams.yaml").read_text())
    assert hparams["hidden_dims"] == [4]
    assert hparams["actor_lr"] == {
        "class_path": "td3_lightning.schedules.Linear",
        "init_args": {"start": 1e-3, "end": 0.0, "steps": 50, "begin": 0},
    }


def test_nothing_is_written_before_the_first_metric(tmp_path: Path) -> None:
    logger = RunLogger(str(tmp_path / "logs"), "a")
    logger.log_hyperparams({"tau": 0.005})
    logger.save()
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []
    logger.log_metrics({"x": 1.0}, 3)
    logger.save()
    folder = tmp_path / "logs" / "a" / "version_0"
    assert (folder / "hparams.yaml").read_text() == "tau: 0.005\n"
    assert (folder / "metrics.csv").read_text() == "env_steps,x\n3,1\n"
    assert RunLogger(str(tmp_path / "logs"), "a").version == 1


def test_only_a_new_column_rewrites_the_file(path: Path) -> None:
    metrics = MetricsFile(path)
    metrics.append({"env_steps": 1, "b": 10})
    first = os.stat(path).st_ino
    metrics.append({"env_steps": 2})
    assert os.stat(path).st_ino == first
    metrics.append({"env_steps": 3, "a": 0.5, "c, d": -1})
    assert os.stat(path).st_ino != first
    metrics.append({"env_steps": 4, "c, d": 1e30})
    assert path.read_text() == 'env_steps,b,a,"c, d"\n1,10,,\n2,,,\n3,,0.5,-1\n4,,,1e+30\n'
    assert os.listdir(path.parent) == ["metrics.csv"]
    assert metrics.rows == 4


@pytest.mark.parametrize("value", [0.1 + 0.2, -0.0, 2.0**53, math.inf, math.nan])
def test_numbers_are_read_back_exactly(path: Path, value: float) -> None:
    MetricsFile(path).append({"env_steps": 7, "x": value})
    ((step, read),) = read_metrics(path, ["x"])["x"]
    assert step == 7
    assert math.copysign(1, read) == math.copysign(1, value) or math.isnan(value)
    np.testing.assert_array_equal(read, value)


def test_existing_file_continues_without_incomplete_row(path: Path) -> None:
    path.write_text("env_steps,x\n1,10\n2,20\n3,")
    metrics = MetricsFile(path)
    assert (metrics.columns, metrics.rows) == (["env_steps", "x"], 2)
    metrics.append({"env_steps": 3, "x": 30, "y": 1})
    assert path.read_text() == "env_steps,x,y\n1,10,\n2,20,\n3,30,1\n"
    assert metrics.rows == 3


def test_file_that_a_spreadsheet_has_saved_is_continued(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfenv_steps,x\r\n1,10\r\n")
    metrics = MetricsFile(path)
    for row in ({"env_steps": 2, "x": 20}, {"env_steps": 3, "y": 1}):
        metrics.append(row)
    points = read_metrics(path, ["x", "y"])
    assert (points["x"].tolist(), points["y"].tolist()) == ([[1, 10], [2, 20]], [[3, 1]])


@pytest.mark.parametrize("content", ["", "env_st"])
def test_file_with_incomplete_header_is_rewritten(path: Path, content: str) -> None:
    path.write_text(content)
    metrics = MetricsFile(path)
    metrics.append({"env_steps": 1, "x": 2})
    assert path.read_text() == "env_steps,x\n1,2\n"
    assert metrics.rows == 1


@pytest.mark.parametrize("new", [{}, {"b": 4.0}])
def test_full_disk_leaves_the_file_valid(path: Path, new: dict[str, float]) -> None:
    """Write neither a partial row nor columns that are missing from the file."""
    metrics = MetricsFile(path)
    metrics.append({"env_steps": 1, "a": 2.0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 2, before[1]))
        with pytest.raises(OSError, match="too large"):
            metrics.append({"env_steps": 12, "a": 3.0, **new})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    metrics.append({"env_steps": 13, "a": 5.0, **new})
    series = read_metrics(path, ["a", "b"])
    assert series["a"].tolist() == [[1, 2], [13, 5]]
    assert series["b"].tolist() == [[13, value] for value in new.values()]
    assert MetricsFile(path).rows == metrics.rows == 2


def test_missing_rows_warn_and_events_do_not_grow(tmp_path: Path) -> None:
    logger = RunLogger(str(tmp_path), "a", version=0)
    logger.log_metrics({"x": 1.0}, 1)
    logger.finalize("success")
    (events,) = (tmp_path / "a" / "version_0").glob("events.*")
    size = events.stat().st_size
    with pytest.warns(UserWarning, match=r"metrics\.csv lacks 2 rows"):
        RunLogger(str(tmp_path), "a", version=0).truncate_to({"rows": 3, "events": {events.name: size + 100}})
    assert events.stat().st_size == size
    assert rows(logger.metrics.path) == [{"env_steps": "1", "x": "1"}]


def test_reading_skips_empty_cells_and_incomplete_rows(path: Path) -> None:
    path.write_text("env_steps,x,y\n1,10,\n2,,5\n3,30,\n4,92,5")  # of 5.5: a killed process
    series = read_metrics(path, ["x", "y", "z"])
    np.testing.assert_array_equal(series["x"], [[1, 10], [3, 30]])
    np.testing.assert_array_equal(series["y"], [[2, 5]])
    assert series["z"].shape == (0, 2)
