"""Check the means over evaluation episodes."""

import pytest

from td3_lightning.algorithm import evaluation_metrics
from td3_lightning.algorithm.evaluation_metrics import EvaluationMetrics


def of_episodes(*reports: dict[str, float]) -> EvaluationMetrics:
    metrics = EvaluationMetrics()
    for report in reports:
        metrics.update(report)
    return metrics


def test_processes_with_other_names_are_joined_in_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment may report a number only in some episodes, such as `lap_finished`."""
    ranks = [of_episodes({"return": 1.0, "lap": 1.0}), of_episodes({"length": 5.0, "return": 3.0})]
    held = [(rank.values, rank.flags) for rank in ranks]
    exchanges = []

    def gather(make: object) -> list[tuple[dict[str, list[float]], list[str]]]:
        exchanges.append(make)
        return held

    monkeypatch.setattr(evaluation_metrics, "gather_from_ranks", gather)
    logs = [{name: float(value) for name, value in rank.compute("eval").items()} for rank in ranks]
    assert logs[0] == logs[1]
    assert (logs[0]["eval/return_mean"], logs[0]["eval/lap"], logs[0]["eval/length_mean"]) == (2.0, 1.0, 5.0)
    assert len(exchanges) == 2
