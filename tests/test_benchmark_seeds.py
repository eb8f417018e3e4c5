"""Tests of the statistics and the runs over seeds."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import results
from benchmarks.aggregate import bootstrap_interval, interquartile_mean, mean_and_std
from benchmarks.results import Run
from td3_lightning.reporting.metrics_csv import MetricsFile

# Statistics over seeds.


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert interquartile_mean([7]) == 7
    assert interquartile_mean([1, 2, 6]) == 3  # a quarter of 3 is none
    assert interquartile_mean([100, 2, 3, -50]) == 2.5
    assert interquartile_mean([1, 2, 3, 4, 1000]) == 3
    assert interquartile_mean(range(8)) == (2 + 3 + 4 + 5) / 4
    assert interquartile_mean([0, 0, 10, 20, 30, 30, 30, 99, 99]) == (10 + 20 + 30 + 30 + 30) / 5


def test_interval_is_a_bootstrap_interval() -> None:
    assert bootstrap_interval([5, 5, 5, 5, 5]) == (5, 5)
    # Five draws of 0 and 1 have the interquartile mean 1 if at least four are 1: 5 * 0.4^4 * 0.6 + 0.4^5 = 8.7% of
    # the time, and 0 in 33.7%, both more than 2.5%.
    assert bootstrap_interval([0, 1, 0, 1, 0]) == (0, 1)
    # The quarter-trimmed mean of n uniform draws from [0, 100] has the variance (winsorised) 416.7 / 0.5^2 / n.
    low, high = bootstrap_interval(np.arange(100))
    assert low == pytest.approx(49.5 - 1.96 * math.sqrt(16.67), abs=0.5)
    assert high == pytest.approx(49.5 + 1.96 * math.sqrt(16.67), abs=0.5)


def test_spread_is_the_sample_standard_deviation() -> None:
    assert mean_and_std([1, 2, 3, 4]) == (2.5, math.sqrt(5 / 3))
    mean, std = mean_and_std([3])
    assert mean == 3
    assert math.isnan(std)


# Results.


def a_run(folder: Path, seed: int, *attempts: dict[int, float], exit_code: int | None = 0, seconds: float = 60) -> Run:
    for version, evaluations in enumerate(attempts):
        metrics = MetricsFile(folder / f"seed_{seed}" / f"version_{version}" / "metrics.csv")
        for step, value in evaluations.items():
            metrics.append({"env_steps": step - 1, "train/return": 0.0})
            metrics.append({"env_steps": step, results.MEAN: value})
    (folder / f"seed_{seed}").mkdir(exist_ok=True, parents=True)
    if exit_code is not None:
        record = {"exit_code": exit_code, "seconds": seconds, "last_line": "the reward is not finite"}
        (folder / f"seed_{seed}" / "run.json").write_text(json.dumps(record))
    return Run(seed, folder / f"seed_{seed}")


def test_resumed_attempt_overrides_earlier_evaluations(tmp_path: Path) -> None:
    run = a_run(tmp_path, 1, {100: 1, 200: 2, 300: 3}, {200: 2.5, 300: 3.5}, {400: 4})
    assert run.evaluations.tolist() == [[100, 1], [200, 2.5], [300, 3.5], [400, 4]]
    many = a_run(tmp_path, 2, *({100 * n: n} for n in range(1, 13)))
    assert many.evaluations[:, 1].tolist() == list(range(1, 13))  # version_10 comes after version_9


def test_table_has_every_seed_and_summary_the_ended_ones(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path, 1, {100: 10, 200: 30, 300: 20}, seconds=3723),
        a_run(tmp_path, 2, {100: 20, 200: 40}, exit_code=1),
        a_run(tmp_path, 3, {100: 1000}, exit_code=143),
        Run(4, tmp_path / "seed_4"),
    ]
    rows = results.table(runs).splitlines()[2:]
    assert rows == [
        "| 1 | 20.00 | 30.00 | 200 | 300 | 1:02:03 |  |",
        "| 2 | 40.00 | 40.00 | 200 | 200 | 0:01:00 | failed: the reward is not finite |",
        "| 3 | 1,000.00 | 1,000.00 | 100 | 100 | 0:01:00 | unfinished |",
        "| 4 | - | - | - | - | 0:00:00 | not started |",
    ]
    text = results.summary(runs)
    assert "Over 2 of 4 seeds" in text
    assert "final: 30.00 ± 14.14" in text
    assert "maximum: 35.00 ± 7.07" in text
    assert "maximum of the mean curve, which the TD3 paper reports: 35.00 at 200" in text
    assert "not counted: 3, 4" in text
    assert "interquartile" not in text
    assert results.summary(runs[:1]).splitlines()[1] == "- final: 20.00"
    assert results.summary(runs[2:]) == "No result yet: none of 2 seeds has ended with an evaluation."


def test_five_seeds_have_an_interval(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, seed, {100: value}) for seed, value in enumerate([1.0, 2, 3, 4, 1000])]
    assert "final: 202.00 ± 446.10; interquartile mean 3.00, 95% interval 1." in results.summary(runs)
    lines = results.draw(runs, "toy").axes[0].lines
    assert np.array(lines[-1].get_xydata()).tolist() == [[100, 202]]


STUB = """
import pathlib, sys
words = sys.argv[1:]
resumed = "--ckpt_path" in words
if resumed:
    version = pathlib.Path(words[words.index("--ckpt_path") + 1]).parent.parent
else:
    version = pathlib.Path("lightning_logs", words[words.index("--name") + 1], "version_0")
    (version / "checkpoints").mkdir(parents=True)
    (version / "checkpoints" / "last.ckpt").touch()
with open(version / "metrics.csv", "a") as file:
    file.write("200,2\\n" if resumed else "env_steps,eval/return_mean\\n100,1\\n")
print(*words)
sys.exit(0 if resumed or words[words.index("--seed_everything") + 1] == "1" else "out of luck")
"""


def test_unfinished_runs_resume_and_finished_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "COMMAND", [sys.executable, "-c", STUB])
    tmp_path.joinpath("original").mkdir()
    tmp_path.joinpath("original", "toy.yaml").write_text("model: {tau: 0.2}\n")
    words = ["--config", "original/toy.yaml", "--seeds", "1", "2", "--jobs", "2", "--model.tau", "0.1"]
    assert results.main(words) == 1
    assert "failed: out of luck" in capsys.readouterr().out
    assert results.main(words) == 0
    folder = tmp_path / "lightning_logs" / "results" / "original_toy"
    first, second = ((folder / f"seed_{seed}" / "log.txt").read_text().splitlines() for seed in (1, 2))
    assert first == [
        "fit --config original/toy.yaml --model.tau 0.1 --seed_everything 1 --name results/original_toy/seed_1"
    ]
    checkpoint = "lightning_logs/results/original_toy/seed_2/version_0/checkpoints/last.ckpt"
    assert second[-1].endswith(f"--seed_everything 2 --ckpt_path {checkpoint}")
    assert Run(2, folder / "seed_2").evaluations.tolist() == [[100, 1], [200, 2]]
    assert (folder / "results.png").stat().st_size > 1000
    text = (folder / "results.md").read_text()
    assert "| 2 | 2.00 | 2.00 | 200 | 200 |" in text
    assert text.startswith("# original/toy.yaml --model.tau 0.1 on 2 seeds\n")


def test_runs_with_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "COMMAND", [sys.executable, "-c", STUB])
    config, words = tmp_path / "toy.yaml", ["--config", "toy.yaml", "--seeds", "1"]
    config.write_text("model: {tau: 0.2}\n")
    assert results.main(words) == 0
    assert results.main([*words, "--model.tau", "0.1"]) == 2
    assert "must have the flags '', got the flags '--model.tau 0.1'. Move the folder away" in capsys.readouterr().err
    config.write_text("model: {tau: 0.3}\n")
    assert results.main(words) == 2
    assert "must have the unchanged toy.yaml, got another version of it. Move the folder" in capsys.readouterr().err
    assert results.main(["--config", "none.yaml", "--seeds", "1"]) == 2
    config.write_text("model: {tau: 0.2}\n")
    assert results.main([*words, "2"]) == 1  # the new seed fails
