"""Check the learning curves of several runs."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from td3_lightning import UsageError
from td3_lightning.reporting.seed_curves import (
    draw_seed_curves,
    mean_curve,
    read_curves,
    t_quantile,
    write_seed_curves,
)

CSV = "env_steps,eval/return_mean\n100,1\n150,\n200,3\n"


def curve(*points: tuple[float, float]) -> np.ndarray:
    return np.array(points, np.float64)


def test_mean_curve_interpolates_within_the_shortest_run() -> None:
    steps, mean, half_width = mean_curve([curve((0, 0), (100, 10)), curve((50, 1), (80, 4), (200, 16))])
    assert steps.tolist() == [50, 80, 100]
    assert mean == pytest.approx([(5 + 1) / 2, (8 + 4) / 2, (10 + 6) / 2])
    assert half_width == pytest.approx(12.7062 * np.std([[5, 8, 10], [1, 4, 6]], axis=0, ddof=1) / np.sqrt(2))


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (99, 1.9842)]
)
def test_quantiles_are_those_of_tables(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, rel=2e-3)


def test_curves_are_read_from_folders_and_compressed_files(tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "1.csv.gz"
    folder.mkdir()
    (folder / "metrics.csv").write_text(CSV)
    file.write_bytes(gzip.compress(CSV.encode(), mtime=0))
    first, second = read_curves([folder, file], "eval/return_mean")
    assert first.tolist() == second.tolist() == [[100, 1], [200, 3]]


@pytest.mark.parametrize(
    ("name", "metric", "expected"),
    [
        ("absent", "eval/return_mean", "A run must be a folder with metrics.csv, or such a file, got .*absent. Check"),
        ("metrics.csv", "eval/lap", "metric must be a column with values in .*metrics.csv, got 'eval/lap'. Use"),
    ],
)
def test_missing_data_is_refused(name: str, metric: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(CSV)
    with pytest.raises(UsageError, match=expected):
        read_curves([tmp_path / name], metric)


HEADER = "env_steps,eval/return_mean\n"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("3,1\n5,1\n2,1\n", ".* must have a clock that never decreases, got another order. Sort its rows."),
        ("nan,1\n2,1\n", ".* must have a clock that never decreases, got another order. Sort its rows."),
        ("1,nan\n2,inf\n", "metric must be a column with values in .*, got 'eval/return_mean'. Use another --metric."),
    ],
)
def test_rows_that_cannot_be_drawn_are_refused(rows: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(HEADER + rows)
    with pytest.raises(UsageError) as error:
        read_curves([tmp_path], "eval/return_mean")
    assert re.fullmatch(expected.replace("+", r"\+"), str(error.value))


def test_values_that_are_not_finite_leave_gaps(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"{HEADER}1,1\n2,nan\n2,inf\n3,1e100\n")
    (curve,) = read_curves([tmp_path], "eval/return_mean")
    assert len(curve) == 4
    write_seed_curves({"runs": [tmp_path, tmp_path]}, "eval/return_mean", "title", tmp_path / "curves.png")


def test_picture_has_runs_mean_and_reference(tmp_path: Path) -> None:
    runs, reference = [curve((0, 0), (10, 2)), curve((0, 2), (10, 4))], [curve((0, 5), (10, 5))]
    (axes,) = draw_seed_curves({"runs": runs, "reference": reference}, "eval/return_mean", "$").axes
    assert len(axes.lines) == 5  # three curves and two means
    assert len({line.get_color() for line in axes.lines}) == 2
    assert axes.get_ylim()[1] < 6  # of the curves; the interval of two runs is 25 wide
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["runs, mean of 2", "reference, mean of 1"]
    (tmp_path / "metrics.csv").write_text(CSV)
    output = tmp_path / "new" / "curves.png"
    write_seed_curves({"$a": [tmp_path]}, "eval/return_mean", "title", output)
    assert output.read_bytes().startswith(b"\x89PNG")


def test_runs_with_different_clocks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "online.csv").write_text(CSV)
    (tmp_path / "offline.csv.gz").write_bytes(gzip.compress(CSV.replace("env_steps", "updates").encode()))
    groups = {"runs": [tmp_path / "online.csv"], "reference": [tmp_path / "offline.csv.gz"]}
    with pytest.raises(
        UsageError, match=r"^runs must have the same clock, got env_steps and updates\. Use one picture"
    ):
        write_seed_curves(groups, "eval/return_mean", "title", tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()
