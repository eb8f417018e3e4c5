"""Check runs over seeds: states, statistics, pictures and restarts."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

import fit_stub
from td3_lightning.errors import RunError, UsageError
from td3_lightning.reporting.metrics_csv import MetricsFile
from td3_lightning.tuning.node import newest_last
from td3_lightning.tuning.plan import Plan
from td3_lightning.tuning.result import Result
from td3_lightning.tuning.run import LocalProcess, Run
from td3_lightning.tuning.seed_report import draw, markdown_table, summary
from td3_lightning.tuning.seeds import run_seeds

METRIC = "eval/return_mean"


def result(seed: int, *scores: float, state: str = "finished", error: str = "", seconds: float = 60) -> Result:
    points = [[100.0 * (number + 1), score] for number, score in enumerate(scores)]
    return Result(f"seed {seed}", state, np.array(points).reshape(-1, 2), error=error, seconds=seconds)


def test_resumed_version_overrides_earlier_evaluations(tmp_path: Path) -> None:
    versions = [{100: 1.0, 200: 2, 300: 3}, {200: 2.5, 300: 3.5}, *({100 * n: n} for n in range(4, 13))]
    for version, evaluations in enumerate(versions):
        metrics = MetricsFile(tmp_path / f"version_{version}" / "metrics.csv")
        for step, value in evaluations.items():
            metrics.append({"env_steps": step - 1, "train/return": 0.0})
            metrics.append({"env_steps": step, METRIC: value})
    points = Run(tmp_path, ()).evaluations(METRIC)
    assert points.tolist() == [[100, 1], [200, 2.5], [300, 3.5], *([100 * n, n] for n in range(4, 13))]


def test_run_that_started_again_has_no_earlier_evaluations(tmp_path: Path) -> None:
    for version, evaluations in enumerate(({100: 1.0, 200: 2, 300: 3}, {100: 5})):
        metrics = MetricsFile(tmp_path / f"version_{version}" / "metrics.csv")
        for step, value in evaluations.items():
            metrics.append({"env_steps": step, METRIC: value})
    assert Run(tmp_path, ()).evaluations(METRIC).tolist() == [[100, 5]]


def test_other_names_of_versions_are_left_out(tmp_path: Path) -> None:
    for name, value in {"version_0": 1.0, "version_0_copy": 2.0, "version_": 3.0}.items():
        MetricsFile(tmp_path / name / "metrics.csv").append({"env_steps": 100, METRIC: value})
    assert Run(tmp_path, ()).evaluations(METRIC).tolist() == [[100, 1]]


def test_evaluations_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "version_0" / "metrics.csv")
    for step, value in {100: 1.0, 200: float("nan"), 300: float("inf"), 400: 2.0, 500: float("nan")}.items():
        metrics.append({"env_steps": step, METRIC: value})
    points = Run(tmp_path, ()).evaluations(METRIC)
    assert points.tolist() == [[100, 1], [400, 2]]
    assert Result("seed 1", "finished", points).values == {
        "env_steps": 400,
        "best": 2,
        "best_at": 400,
        "last": 2,
        "last_10": 1.5,
    }


def test_table_has_every_seed_and_summary_the_ended_ones() -> None:
    results = [
        result(1, 10, 30, 20, seconds=3723),
        result(2, 20, 40, state="failed", error="the reward is not finite"),
        result(3, 1000, state="unfinished"),
        result(4, state="waiting", seconds=0),
    ]
    assert markdown_table(results).splitlines()[2:] == [
        "| seed 1 | 300 | 30.00 | 20.00 | 20.00 | finished | 1:02:03 |",
        "| seed 2 | 200 | 40.00 | 40.00 | 30.00 | failed: the reward is not finite | 0:01:00 |",
        "| seed 3 | 100 | 1,000.00 | 1,000.00 | 1,000.00 | unfinished | 0:01:00 |",
        "| seed 4 | - | - | - | - | waiting | 0:00:00 |",
    ]
    assert summary(results) == [
        "Over 2 of 4 seeds, mean ± sample standard deviation:",
        "- mean of last 10: 25.00 ± 7.07",
        "- last: 30.00 ± 14.14",
        "- best: 35.00 ± 7.07",
        "- best of the mean curve, which the TD3 paper reports: 35.00 at 200; it has the 2 evaluations that all seeds "
        "have, up to 200",
        "- not counted, without a result: seed 3, seed 4",
    ]
    late = dataclasses.replace(results[1], points=np.add(results[1].points, [50, 0]))
    assert summary([results[0], late])[4] == "- no mean curve, because no evaluation is at the same step of all seeds"
    assert summary(results[:1])[2] == "- last: 20.00"
    lowest = summary([dataclasses.replace(each, mode="min") for each in results])
    assert lowest[4].startswith("- best of the mean curve, which the TD3 paper reports: 15.00 at 100; it has the 2 ")
    assert summary(results[2:]) == ["No result yet: none of 2 seeds has ended with an evaluation."]


def test_last_10_is_the_mean_of_the_last_10_evaluations() -> None:
    values = result(1, *range(12)).values
    assert (values["last_10"], values["last"], values["best"], values["best_at"]) == (6.5, 11, 11, 1200)
    lowest = dataclasses.replace(result(1, 3, 1, 2), mode="min").values
    assert (lowest["best"], lowest["best_at"]) == (1, 200)


def test_five_seeds_have_an_interval() -> None:
    results = [result(seed, value, value) for seed, value in enumerate([1.0, 2, 3, 4, 1000])]
    assert summary(results)[2].startswith("- last: 202.00 ± 446.10; interquartile mean 3.00, 95% interval 1.")
    assert summary(results) == summary(results)  # the bootstrap has a fixed seed
    axes = draw(results, METRIC, "toy").axes[0]
    assert np.array(axes.lines[-1].get_xydata()).tolist() == [[100, 3], [200, 3]]
    assert len(axes.collections) == 1
    assert not draw(results[:4], METRIC, "toy").axes[0].collections


@pytest.mark.parametrize(("seeds", "label"), [(2, "mean of 2"), (3, "mean of 3"), (4, "interquartile mean of 4")])
def test_few_seeds_have_no_interquartile_mean(seeds: int, label: str) -> None:
    """A quarter of three values is none."""
    axes = draw([result(seed, seed) for seed in range(seeds)], METRIC, "toy").axes[0]
    assert axes.lines[-1].get_label() == label


def test_configuration_that_is_edited_ends_the_sweep(plan: Plan) -> None:
    """The other seeds would be trained with other settings."""
    file = Path("toy.yaml")
    file.write_text("model: {tau: 0.2}  # comment\n")

    def start(run: Run, plan: Plan) -> LocalProcess:
        file.write_text("model: {tau: 0.3}")
        return LocalProcess(run, plan)

    plan = dataclasses.replace(plan, files=[file], workers=1)
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
    command = "python -m td3_lightning sweep --config toy.yaml --model.tau 0.1 --seeds 1 2 --name toy"
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


def test_offline_runs_are_reported_in_updates(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    run_seeds(dataclasses.replace(plan, clock="updates"), [1])
    texts = [capsys.readouterr().out, *(plan.folder.joinpath(f"seeds.{kind}").read_text() for kind in ("md", "csv"))]
    for text in texts:
        assert "updates" in text
        assert "env_steps" not in text


def test_runs_with_other_settings_are_refused(plan: Plan) -> None:
    run_seeds(plan, [1])
    with pytest.raises(UsageError, match=r"flags must be as in the .*, got none instead of --model.tau"):
        run_seeds(dataclasses.replace(plan, flags=[]), [1])
