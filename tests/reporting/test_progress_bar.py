"""Test that `Curve`, `Progress` and `Results` show the numbers that were logged."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import pytest
from matplotlib.figure import Figure

import toys
from td3_lightning import TD3, Collector, ReplayData
from td3_lightning.reporting.learning_curve import Curve, draw_curve
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.progress_bar import Progress
from td3_lightning.reporting.summary import Results, results_table


class Fading(toys.Counter):
    """Give lower returns in each episode."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, -reward, *rest)


gym.register(id="toys/Fading-v0", entry_point=Fading, disable_env_checker=True)


@pytest.fixture
def counter() -> Any:
    def make(env_id: str = "toys/Counter-v0", **kwargs: Any) -> tuple[TD3, ReplayData]:
        settings = {"steps_per_epoch": 20, "batch_size": 4, "capacity": 200, "eval_episodes": 2}
        data = ReplayData(env_id, **{**settings, **kwargs})
        return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,)), data

    return make


# The curve.


def a_series(training: list[Any], mean: list[Any], low: list[Any], high: list[Any]) -> dict[str, Any]:
    names = ("train/return", "eval/return_mean", "eval/return_min", "eval/return_max")
    points = [np.array(column, float).reshape(-1, 2) for column in (training, mean, low, high)]
    return dict(zip(names, points, strict=True))


def lines(figure: Figure) -> dict[str, Any]:
    return {str(line.get_label()): np.array(line.get_xydata()) for line in figure.axes[0].lines}


def test_the_curve_shows_the_series_and_marks_the_best() -> None:
    training = [[10 * n, n] for n in range(1, 31)]
    mean, low, high = (
        [[100, 5], [200, 20], [300, 12]],
        [[100, 1], [200, 15], [300, 2]],
        [[100, 9], [200, 21], [300, 30]],
    )
    figure = draw_curve(a_series(training, mean, low, high), "car / version_3")
    (axes,), drawn = figure.axes, lines(figure)
    np.testing.assert_array_equal(drawn["training episode"], training)
    np.testing.assert_array_equal(drawn["evaluation, mean (best 20.0 at 200)"], mean)
    smooth = drawn["mean of 10 episodes"]
    np.testing.assert_allclose(smooth[[0, 1, 9, 29]], [[10, 1], [20, 1.5], [100, 5.5], [300, 25.5]])
    band = {tuple(point) for point in axes.collections[0].get_paths()[0].vertices}
    assert band == {tuple(map(float, point)) for point in low + high}
    assert axes.get_title(loc="left") == "car / version_3"
    assert axes.get_xlabel() == "env_steps"
    bottom, top = axes.get_ylim()
    assert bottom < 1
    assert top > 30


def test_the_legend_fits_into_the_picture() -> None:
    training, evaluation = [[n, -10_000.5] for n in range(0, 3_000_000, 300)], [[2_985_000, -10_530.2]]
    figure = draw_curve(a_series(training, *[evaluation] * 3), "x")
    figure.canvas.draw()
    assert figure.axes[0].get_legend().get_window_extent().x1 < figure.bbox.width


def test_outliers_do_not_flatten_the_curve() -> None:
    training = [[n, 100.0] for n in range(999)] + [[999, -1e6]]
    evaluation = [[500, 200], [999, 250]]
    low, high = draw_curve(a_series(training, *[evaluation] * 3), "x").axes[0].get_ylim()
    assert 50 < low < 100
    assert 250 < high < 300


@pytest.mark.parametrize(("training", "evaluation"), [([], [[20, -3]]), ([[5, 1.5]], [])])
def test_curve_without_episodes_or_evaluations(training: list[Any], evaluation: list[Any]) -> None:
    figure = draw_curve(a_series(training, *[evaluation] * 3), "x")
    figure.savefig(io.BytesIO(), format="png")
    assert ("evaluation, mean (best -3.0 at 20)" in lines(figure)) == bool(evaluation)
    assert ("training episode" in lines(figure)) == bool(training)


def test_curve_is_drawn_after_every_evaluation(
    make_trainer: Any, tmp_path: Path, counter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("td3_lightning.reporting.learning_curve.draw_curve", draw_curve)  # other tests draw nothing
    sizes = []

    class Look(L.Callback):
        def on_validation_end(self, *_: Any) -> None:
            sizes.append(len((tmp_path / "a" / "version_0" / "curve.png").read_bytes()))

    module, data = counter()
    trainer = make_trainer(
        max_epochs=2, logger=RunLogger(str(tmp_path), "a"), callbacks=[Collector(7), Curve(), Look()]
    )
    trainer.fit(module, datamodule=data)
    assert len(set(sizes)) == 2
    picture = (tmp_path / "a" / "version_0" / "curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    make_trainer(logger=RunLogger(str(tmp_path), "b"), callbacks=[Curve()]).validate(module, data, verbose=False)
    assert not (tmp_path / "b" / "version_0" / "curve.png").exists()


def test_unwritable_curve_warns_once_and_run_continues(make_trainer: Any, tmp_path: Path, counter: Any) -> None:
    (tmp_path / "a" / "version_0" / "curve.png").mkdir(parents=True)
    module, data = counter()
    logger = RunLogger(str(tmp_path), "a", version=0)
    trainer = make_trainer(max_epochs=3, logger=logger, callbacks=[Collector(7), Curve()])
    with pytest.warns(UserWarning, match=r"^Cannot write curve\.png: .* The run continues") as caught:
        trainer.fit(module, datamodule=data)
    assert len([warning for warning in caught if "curve.png" in str(warning.message)]) == 1
    assert module.env_steps == 67


# Progress.


def plain_lines(out: str) -> list[str]:
    """Return the lines of the evaluations with single spaces and the time 00:00."""
    found = [re.sub(r" +", " ", line.strip()) for line in out.splitlines() if "env_steps" in line]
    return [re.sub(r"^\d\d:\d\d ", "00:00 ", line) for line in found]


def test_one_line_per_evaluation_without_a_terminal(make_trainer: Any, counter: Any, capsys: Any) -> None:
    module, data = counter()
    trainer = make_trainer(enable_progress_bar=True, max_epochs=2, callbacks=[Progress(0.0), Collector(7)])
    trainer.fit(module, datamodule=data)
    out = capsys.readouterr().out
    assert plain_lines(out) == [
        "00:00 27 env_steps return 40.00 ± 25.00 the best so far",
        "00:00 47 env_steps return 140.00 ± 25.00 the best so far",
    ]
    assert "\r" not in out
    assert "%" not in out


def test_best_evaluation_is_kept_after_resume(make_trainer: Any, counter: Any, capsys: Any, tmp_path: Path) -> None:
    module, data = counter("toys/Fading-v0")
    trainer = make_trainer(enable_progress_bar=True, max_epochs=2, callbacks=[Progress(), Collector(7)])
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    progress, (module, _) = Progress(), counter("toys/Fading-v0")
    trainer = make_trainer(enable_progress_bar=True, max_epochs=3, callbacks=[progress, Collector(7)])
    trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "half.ckpt")
    first, second, third = plain_lines(capsys.readouterr().out)
    assert first == "00:00 27 env_steps return -40.00 ± 25.00 the best so far"
    assert second == "00:00 47 env_steps return -140.00 ± 25.00 best -40.0 at 27"
    # The resume repeats the last evaluation episode, which lowers the returns of this environment once more.
    assert third == "00:00 67 env_steps return -290.00 ± 25.00 best -40.0 at 27"
    assert progress.state_dict() == {"best": {"return": -40.0, "env_steps": 27}}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(run: Any, *args: Any, **kwargs: Any) -> str:
    """Return what `run` writes to a terminal."""
    with contextlib.redirect_stdout(Terminal()) as screen:
        run(*args, **kwargs)
    return screen.getvalue()


def test_bar_counts_updates_of_the_whole_run(make_trainer: Any, counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    module, data = counter()
    trainer = make_trainer(enable_progress_bar=True, max_epochs=2, callbacks=[Progress(0.0), Collector(7)])
    out = shown(trainer.fit, module, datamodule=data)
    drawn = [text.strip() for text in re.split(r"[\r\n]", out) if text.strip()]
    assert re.fullmatch(r"0%\| +\| warm-up", drawn[0])
    bars = [text for text in drawn if "%|" in text and " env_steps" in text]
    assert re.fullmatch(r"2%\|\S+ +\| 7 env_steps, last 15\.0, episodes 1", bars[0])
    assert re.fullmatch(r"5%\|\S+ +\| 8 env_steps, last 15\.0, \S+ left, [\d,]+/s, episodes 1", bars[1])
    assert any("evaluation: episode 2 of 2, 27 env_steps" in bar for bar in bars)
    # 47 steps contain nine whole episodes of five steps. The return of the ninth is 10 * 8 * 5 + 15.
    assert re.fullmatch(
        r"100%\|\S+\| 47 env_steps, best 140\.0, last 415\.0, 00:00 left, [\d,]+/s, episodes 9", bars[-1]
    )
    assert sum("the best so far" in text for text in drawn) == 2


def test_bar_fits_a_terminal(make_trainer: Any, counter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = 60
    monkeypatch.setenv("COLUMNS", str(columns))
    module, data = counter()
    trainer = make_trainer(enable_progress_bar=True, max_epochs=2, callbacks=[Progress(0.0), Collector(7)])
    out = shown(trainer.fit, module, datamodule=data)
    bars = [text for text in re.split(r"[\r\n]", out) if "%|" in text]
    assert max(len(bar.rstrip()) for bar in bars) <= columns
    assert min(bar.count("|") and len(bar.split("|")[1]) for bar in bars) >= 10


def test_progress_shows_episodes_of_test(make_trainer: Any, counter: Any) -> None:
    module, data = counter(test_episodes=3)
    trainer = make_trainer(enable_progress_bar=True, callbacks=[Progress(0.0)])
    out = shown(trainer.test, module, datamodule=data, verbose=False)
    assert "episode 3 of 3, return 115.0" in out


# Results.


def cells(episodes: list[dict[str, float]]) -> list[list[str]]:
    table = results_table(episodes)
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]  # type: ignore[arg-type]


def test_table_values() -> None:
    episodes = [
        {"return": 911.25, "frames": 825.0, "lap": 1.0, "late": 2.0},
        {"return": 1911.25, "frames": 827.0, "lap": 0.0},
        {"return": 911.25, "frames": 826.0, "lap": 1.0, "late": 4.0},
    ]
    assert cells(episodes) == [
        ["return", "1,244.58 ± 471.40", "911.25", "1,911.25"],
        ["frames", "826.00 ± 0.82", "825", "827"],
        ["lap", "2 of 3", "", ""],
        ["late (reported by 2 of 3 episodes)", "3.00 ± 1.00", "2", "4"],
    ]


def test_metrics_with_the_same_values_share_a_row() -> None:
    episodes = [{"return": 9.0, "lap": 1.0, "lap_finished": 1.0}, {"return": 5.0, "lap": 0.0, "lap_finished": 0.0}]
    assert [row[:2] for row in cells(episodes)] == [["return", "7.00 ± 2.00"], ["lap, lap_finished", "1 of 2"]]


def test_results_are_printed_after_test(make_trainer: Any, counter: Any, capsys: Any) -> None:
    module, data = counter(test_episodes=3, eval_episodes=3)
    module.env_steps = 12_345
    trainer = make_trainer(callbacks=[Results()])
    trainer.test(module, datamodule=data, verbose=False)
    out = capsys.readouterr().out
    assert "3 episodes, seeds 50000 to 50002, after 12,345 env_steps of training" in out
    found = [re.split(r" *│ *", line.strip("│ \n")) for line in out.splitlines() if "│" in line]
    assert found[:3] == [
        ["return", "65.00 ± 40.82", "15", "115"],
        ["length, steps", "5.00 ± 0.00", "5", "5"],
        ["even", "0 of 3"],
    ]
    assert found[3][0] == "wall time (s)"
    trainer.test(module, datamodule=data, verbose=False)
    assert "3 episodes" in capsys.readouterr().out


def test_sanity_check_is_not_reported(make_trainer: Any, counter: Any, tmp_path: Path) -> None:
    module, data = counter()
    callbacks = [Progress(0.0), Collector(7), Curve()]
    logger = RunLogger(str(tmp_path), "a")
    trainer = make_trainer(enable_progress_bar=True, num_sanity_val_steps=2, callbacks=callbacks, logger=logger)
    out = shown(trainer.fit, module, datamodule=data)
    assert out.count("the best so far") == 1
    assert out.count("evaluation: episode 1 of 2") == 1
