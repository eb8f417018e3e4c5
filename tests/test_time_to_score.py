"""Tests of benchmarks.time_to_score."""

import dataclasses
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest

from benchmarks import score_run, time_to_score
from benchmarks.score_run import START, TASKS, Scorer, mean_return
from benchmarks.time_to_score import table
from benchmarks.workloads import ROOT
from td3_lightning.cli.app import main

LANDER = TASKS["lander"]


def point(frames: float, seconds: float, value: float) -> dict[str, float]:
    return {"frames": frames, "seconds": seconds, "return": value}


def test_run_without_the_score_counts_as_longest() -> None:
    arrived = [[point(7500, 10.0, -100.0), point(15000, seconds, 200.0)] for seconds in (20.4, 30.0)]
    lost = [point(480_000, 900.0, 199.9)]
    lines = table(LANDER, {"ours": [*arrived, lost], "other": [lost, arrived[0], []]}).splitlines()
    assert lines[2] == "| ours | 2 of 3 | 30 (20, 30, never) | 15,000 (15,000, 15,000, never) |"
    assert lines[3] == "| other | 1 of 3 | never (never, 20, never) | never (never, 15,000, never) |"


def test_stopwatch_excludes_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def slow_mean(*_: object) -> float:
        nonlocal now
        now += 50.0
        return 0.0

    monkeypatch.setattr(score_run, "time", SimpleNamespace(time=lambda: now))
    monkeypatch.setenv(START, str(now))
    monkeypatch.setattr(score_run, "mean_return", slow_mean)
    scorer = Scorer(LANDER, tmp_path / "evaluations.jsonl")
    for frames in (7_499, 7_503, 14_999, 15_000):
        now += 3.0
        scorer.evaluate(frames, lambda obs: obs, lambda: gymnasium.make("Pendulum-v1"))
    points = time_to_score.read(tmp_path / "evaluations.jsonl")
    assert [(each["frames"], each["seconds"]) for each in points] == [(7_503, 6.0), (15_000, 12.0)]


def test_mean_return_is_that_of_fixed_seeds() -> None:
    env = gymnasium.make("Pendulum-v1", max_episode_steps=20)

    def policy(obs: object) -> object:
        return env.action_space.high

    assert mean_return(policy, env, 2) == mean_return(policy, env, 2) != mean_return(policy, env, 1)


def test_run_that_fails_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time_to_score, "train", lambda options, name, seed: None)
    words = ["--implementations", "ours", "--seeds", "1", "2", "--output", str(tmp_path)]
    run = tmp_path / "lander" / "ours_1"
    run.mkdir(parents=True)
    run.joinpath("evaluations.jsonl").write_text('{"frames": 7500, "seconds": 1.0, "return": 200.0}\n')
    with pytest.raises(SystemExit) as ended:
        time_to_score.main(words)
    assert ended.value.code == f"Every run must end, got a failure of ours_2. Read output.txt in {tmp_path}."
    assert capsys.readouterr().out == ""
    assert time_to_score.main([*words[:3], "1", *words[5:]]) == 0


def test_kept_run_has_the_conditions_of_its_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_: object) -> None:
        Path(command[-1]).write_text('{"frames": 7500, "seconds": 1.0, "return": 200.0}\n')

    monkeypatch.setattr(time_to_score, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(time_to_score, "cpu", lambda: "EPYC")
    words = ["--implementations", "ours", "--output", str(tmp_path), "--seeds"]
    for commit, jobs, seeds in (("aaa", "1", ["1"]), ("bbb", "2", ["1", "2", "3"])):
        monkeypatch.setattr(time_to_score, "commit", lambda commit=commit: commit)
        assert time_to_score.main([*words, *seeds, "--jobs", jobs]) == 0
    assert capsys.readouterr().out.split("\n\n")[-2].splitlines()[-2:] == [
        "- ours_1: EPYC; aaa; runs at a time: 1",
        "- ours_2, ours_3: EPYC; bbb; runs at a time: 2",
    ]
    (tmp_path / "lander" / "ours_1" / "conditions.txt").unlink()
    assert time_to_score.main([*words, "1"]) == 0
    assert "- ours_1: not recorded\n" in capsys.readouterr().out


def test_our_run_is_scored_until_its_last_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(START, str(time.time()))
    monkeypatch.setitem(TASKS, "lander", dataclasses.replace(LANDER, episodes=1, interval=90, max_frames=180))
    monkeypatch.setattr(score_run, "os", SimpleNamespace(environ=os.environ, getppid=lambda: 1, _exit=leave))
    callback = '{"class_path": "benchmarks.score_callback.ScoreCallback", "init_args": {"path": "scores.jsonl"}}'
    words = ["--config=lander.yaml", "--collector.warmup_steps=10", "--data.eval_episodes=1", "--data.batch_size=8"]
    with pytest.raises(SystemExit) as ended:
        main(["fit", *words, "--trainer.callbacks=[]", f"--trainer.callbacks+={callback}"])
    assert ended.value.code == 0
    assert [each["frames"] for each in time_to_score.read(tmp_path / "scores.jsonl")] == [90.0, 180.0]


def test_our_run_has_the_shipped_configuration_and_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[list[str]] = []
    monkeypatch.setattr("td3_lightning.cli.app.main", lambda words: said.append(words) or 0)
    monkeypatch.setattr(sys, "argv", ["score_run", "ours", "halfcheetah", "7", "scores.jsonl"])
    assert score_run.main() == 0
    assert said[0][:3] == ["fit", "--config=halfcheetah.yaml", "--seed_everything=7"]


def test_evaluation_seeds_are_those_of_no_configuration() -> None:
    settings = [line.split() for path in ROOT.glob("configs/**/*.yaml") for line in path.read_text().splitlines()]
    seeds = [int(words[1]) for words in settings if words and words[0] == "test_seed:"]
    assert max([*seeds, 50_000]) + 100_000 < score_run.EVAL_SEED
