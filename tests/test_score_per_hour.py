"""Tests of benchmarks.score_per_hour, and of other checkouts in benchmarks.speed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import cpu_score_run
from benchmarks.cpu_score_run import CpuScorer
from benchmarks.interleaved import measure
from benchmarks.score_per_hour import cell, commands, last_return, main, parse
from benchmarks.speed import checkouts
from benchmarks.time_to_score import read, record_conditions


def test_clock_excludes_evaluations_and_blocks_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def slow_mean(*_: object) -> float:
        nonlocal now
        now += 500.0
        return 7.0

    monkeypatch.setattr(cpu_score_run, "time", SimpleNamespace(process_time=lambda: now))
    monkeypatch.setattr(cpu_score_run, "mean_return", slow_mean)
    scorer = CpuScorer(tmp_path / "evaluations.jsonl", budget=1e9)
    for seconds in (59.0, 2.0, 59.5, 1.0):
        now += seconds
        with scorer.pause():
            now += 10.0
            scorer.evaluate(int(now), lambda obs: obs, lambda: None)  # type: ignore[arg-type,return-value]
    assert [point["seconds"] for point in read(tmp_path / "evaluations.jsonl")] == [61.0, 121.5]


def test_table_has_the_last_evaluation_before_a_time() -> None:
    points = [{"frames": 1.0, "seconds": seconds, "return": seconds + 1} for seconds in (60.0, 890.0, 905.0)]
    assert last_return(points, 900.0) == 891.0
    assert last_return(points, 904.0) == 906.0  # a second later
    assert last_return(points, 1800.0) is None
    assert cell([1.0, None, 3000.0]) == "1,500 (1, -, 3,000)"


def test_kept_runs_give_the_table_and_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("td3_1", "td7_1"):
        path = tmp_path / "lander" / name / "evaluations.jsonl"
        path.parent.mkdir(parents=True)
        points = [{"frames": 10 * minute, "seconds": 60.0 * minute, "return": 2.0 * minute} for minute in (1, 2, 3)]
        path.write_text("".join(f"{json.dumps(point)}\n" for point in points))
        record_conditions(path, jobs=2)
    flags = ["--task", "lander", "--agents", "td3", "td7", "--minutes", "2", "--output", str(tmp_path)]
    assert main([*flags, "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "- td3_1, td7_1: " in printed
    assert "; runs at a time: 2" in printed
    assert "| td3 | 4 (4) | 30 (30) |" in printed
    assert (tmp_path / "lander" / "curve.png").stat().st_size > 10_000


def test_failed_run_is_named(tmp_path: Path) -> None:
    flags = ["--agents", "crossq", "--minutes", "2", "--seeds", "1", "--output", str(tmp_path)]
    with pytest.raises(SystemExit, match="a failure of crossq_1"):
        main([*flags, "--baselines-python", "/bin/false"])


def test_variant_trains_with_its_flags_until_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = "small=td3 --data.env_id Pendulum-v1 --collector.warmup_steps 500 --model.hidden_dims [8]"
    options = parse(["--agents", "--variant", variant, "--output", str(tmp_path)])
    _, agent, config, *flags = commands(options)["small"]
    assert (agent, config) == ("ours", "halfcheetah.yaml")

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cpu_score_run, "INTERVAL", 0.0)
    monkeypatch.setattr(cpu_score_run, "os", SimpleNamespace(getppid=lambda: 1, _exit=leave))
    with pytest.raises(SystemExit) as ended:
        cpu_score_run.train_ours("3", "0.0", tmp_path / "evaluations.jsonl", [config, *flags])
    assert ended.value.code == 0
    (point,) = read(tmp_path / "evaluations.jsonl")
    assert point["frames"] == 1500  # the warm-up and one epoch
    assert -2000 < point["return"] < 0


def test_checkout_trains_with_its_own_code(tmp_path: Path) -> None:
    package = tmp_path / "benchmarks"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("baseline.py").write_text("raise SystemExit('the other checkout')")
    other = checkouts([f"before={tmp_path}"])["ours:before"]
    lines: list[str] = []
    assert measure({other: sys.executable}, "L", 1, 0.1, threads=1, report=lines.append) == []
    assert lines[0] == "Skipping td3_lightning, before: the other checkout"
    with pytest.raises(SystemExit, match="--checkout must be NAME=FOLDER"):
        checkouts([f"before={tmp_path / 'nothing'}"])
