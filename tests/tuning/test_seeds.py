"""Check runs over seeds: states, statistics, progress, pictures and restarts."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

import fit_stub
from td3_lightning.errors import RunError, UsageError
from td3_lightning.reporting.metrics_csv import MetricsFile
from td3_lightning.tuning.node import newest_last
from td3_lightning.tuning.pool import Result
from td3_lightning.tuning.run import LocalProcess, Plan, Run
from td3_lightning.tuning.seeds import run_seeds, summary

METRIC = "eval/return_mean"


def result(seed: int, *scores: float, state: str = "finished", error: str = "", seconds: float = 60) -> Result:
    points = [[100.0 * (number + 1), score] for number, score in enumerate(scores)]
    return Result(f"seed {seed}", state, np.array(points).reshape(-1, 2), error=error, seconds=seconds)


def test_resumed_version_overrides_earlier_evaluations(tmp_path: Path) -> None:
    versions = [{100: 1.0, 200: 2, 300: 3}, {200: 2.5, 300: np.nan}, *({100 * n: n} for n in range(4, 13))]
    names = [f"version_{number}" for number in range(len(versions))]
    for name, evaluations in zip([*names, "version_0_copy"], [*versions, {100: 5.0}], strict=True):
        metrics = MetricsFile(tmp_path / name / "metrics.csv")
        for step, value in evaluations.items():
            metrics.append({"env_steps": step - 1, "train/return": 0.0})
            metrics.append({"env_steps": step, METRIC: value})
    points = Run(tmp_path, ()).evaluations(METRIC)
    assert points.tolist() == [[100, 1], [200, 2.5], *([100 * n, n] for n in range(4, 13))]


def test_summary_is_over_the_ended_seeds() -> None:
    results = [
        result(1, 10, 30, 20),
        result(2, 20, 40, state="failed", error="the reward is not finite"),
        result(3, 1000, state="unfinished"),
        result(4, state="waiting"),
    ]
    assert summary(results) == [
        "Over 2 of 4 seeds, mean ± sample standard deviation:",
        "- mean of last 10: 25.00 ± 7.07, 95% interval of the mean ± 63.53",  # 12.706 * 7.071 / 2^0.5
        "- last: 30.00 ± 14.14, 95% interval of the mean ± 127.06",
        "- best: 35.00 ± 7.07, 95% interval of the mean ± 63.53",
        "- best of the mean curve, which the TD3 paper reports: 35.00 at 200",
        "- not counted, without a result: seed 3, seed 4",
    ]
    assert summary(results[:1])[2] == "- last: 20.00"
    lowest = summary([dataclasses.replace(each, mode="min") for each in results])
    assert lowest[4].endswith(": 15.00 at 100")
    assert summary(results[2:]) == ["No result yet: none of 2 seeds has ended with an evaluation."]


def test_picture_does_not_end_the_report(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("td3_lightning.tuning.seeds.draw_seed_curves", fail)
    run_seeds(plan, [1])
    out = capsys.readouterr().out
    assert "Cannot write seeds.png: no font\nfiles " in out
    assert "reproduce " in out
    assert "| seed 1 |" in (plan.folder / "seeds.md").read_text()
    assert not (plan.folder / "seeds.png").exists()


def test_configuration_that_is_edited_ends_the_sweep(plan: Plan) -> None:
    """The other seeds would be trained with other settings."""
    file = Path("toy.yaml")
    file.write_text("model: {tau: 0.2}  # comment\n")

    def start(run: Run, plan: Plan) -> LocalProcess:
        file.write_text("model: {tau: 0.3}")
        return LocalProcess(run, plan)

    plan = dataclasses.replace(plan, read=lambda name: yaml.safe_load(Path(name).read_text()), workers=1)
    with pytest.raises(UsageError, match=r"^toy\.yaml must be as at the start of the sweep, got other settings\. Undo"):
        run_seeds(plan, [1, 2], start)
    assert Run(plan.folder / "seed_1", ()).finished
    assert not Path(plan.folder, "seed_2", "log.txt").exists()
    file.write_text("{model: {tau: 0.2}}")
    run_seeds(plan, [1, 2])


def test_error_of_an_engine_saves_the_other_runs(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    def start(run: Run, plan: Plan) -> LocalProcess:
        if run.label == "seed 2":
            raise RuntimeError("no node")
        return LocalProcess(run, plan)

    Path("plan.txt").write_text("seed_1 pause 60\n")
    with pytest.raises(RuntimeError, match="no node"):
        run_seeds(plan, [1, 2], start)
    assert Run(plan.folder / "seed_1", ()).record["exit_code"] in (-15, 143)  # it may stop before its handler is set
    assert "Saving 1 active runs.\nAll runs are saved." in capsys.readouterr().out


def test_unfinished_seeds_resume_and_finished_ones_are_kept(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.txt").write_text("seed_2 fail out_of_luck\n")
    with pytest.raises(RunError, match=r"seed 2 is failed. Read log.txt"):
        run_seeds(plan, [1, 2])
    assert "failed: out_of_luck" in (plan.folder / "seeds.md").read_text()
    Path("plan.txt").unlink()
    run_seeds(plan, [1, 2])
    logs = [(plan.folder / f"seed_{seed}" / "log.txt").read_text().splitlines() for seed in (1, 2)]
    first = "start fit --config toy.yaml --model.tau 0.1 --seed_everything={0} --name toy/seed_{0}"
    assert logs[0] == [first.format(1)]
    assert logs[1] == [
        first.format(2),
        "out_of_luck",
        f"{first.format(2)} {fit_stub.resume_words(plan.folder / 'seed_2')}",
    ]
    assert (plan.folder / "seeds.png").stat().st_size > 1000
    assert "seed 2,finished,400.0,3.0,400.0,3.0,1.5," in (plan.folder / "seeds.csv").read_text()
    command = "td3-lightning sweep --config toy.yaml --model.tau 0.1 --seeds 1 2 --name toy"
    assert command in (plan.folder / "seeds.md").read_text()
    assert f"reproduce  {command}\n" in capsys.readouterr().out


def test_copy_of_a_version_is_not_resumed(tmp_path: Path) -> None:
    for number, name in enumerate(("version_2", "version_10", "version_10_copy")):
        path = tmp_path / name / "checkpoints" / "last.ckpt"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (number, number))
    assert newest_last(tmp_path) == tmp_path / "version_10" / "checkpoints" / "last.ckpt"
    assert newest_last(tmp_path / "absent") is None


def test_seed_that_is_killed_again_and_again_has_failed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.tuning.node.PROGRAM", ["-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(RunError, match=r"seed 1 is failed\. Read log.txt"):
        run_seeds(plan, [1])
    assert "failed: killed 2 times without a new evaluation" in (plan.folder / "seeds.md").read_text()
