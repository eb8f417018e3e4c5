"""Check the lines and the table of the results."""

import numpy as np
import pytest
from rich.console import Console

from td3_lightning.tuning.pool import Progress
from td3_lightning.tuning.result import Result, results_table


def result(number: int, state: str, *scores: float, error: str = "") -> Result:
    points = np.array([[100.0 * (place + 1), score] for place, score in enumerate(scores)]).reshape(-1, 2)
    return Result(f"trial {number}", state, points, settings={"model.actor_lr": 0.00031415}, error=error)


def test_a_pipe_gets_one_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("eval/return_mean") as progress:
        progress.update([result(0, "finished", 1)])  # of an earlier start
        progress.update([result(0, "finished", 1), result(1, "running")])
        for _ in range(2):
            progress.update([result(0, "finished", 1), result(1, "running", 5, 3)])
        progress.update([result(1, "failed", 5, 3, error="the reward is not finite")])
    assert capsys.readouterr().out.splitlines() == [
        "trial 1    running  actor_lr 0.000314",
        "trial 1             200 env_steps  eval/return_mean 3.00, best 5.00",
        "trial 1    failed: the reward is not finite 200 env_steps  eval/return_mean 3.00, best 5.00",
    ]


def test_table_has_at_most_its_rows_and_names_the_rest() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(results_table([result(number, "finished", number) for number in range(5)], "m", most=2))
    text = captured.get()
    assert "m, 2 of 5 runs" in text
    assert "trial 1" in text
    assert "trial 2" not in text
    assert "actor_lr 0.000314" in text
