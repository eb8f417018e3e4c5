"""Evaluations in which only some episodes report a number."""

from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping

import toys
from td3_lightning import TD3, Collector, ReplayData
from td3_lightning.checkpointing.best import BestCheckpoint


class Reporting(toys.Counter):
    """Report a success, and a number, in the evaluation episodes that a test chooses."""

    succeeds: ClassVar[list[bool]] = []  # of the evaluation episodes that follow

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {}
        if (terminated or truncated) and Reporting.succeeds and Reporting.succeeds.pop(0):
            info = {"success": True, "time": 7.0}
        return obs, reward, terminated, truncated, info


class Metrics(Callback):
    """Record the metrics after each evaluation."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        own = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.seen.append({name: own[name] for name in own if "success" in name or "time" in name})


def data() -> ReplayData:
    return ReplayData(Reporting, {"length": 5}, batch_size=4, steps_per_epoch=10, eval_episodes=4, capacity=100)


def fit(make_trainer: Any, evaluations: list[str], *others: Callback, **settings: Any) -> tuple[Metrics, L.Trainer]:
    """Train with evaluations such as "1100", one digit per episode."""
    source, metrics = data(), Metrics()
    module = TD3(source.obs_dim, source.action_low, source.action_high, hidden_dims=[4])

    class Script(Callback):
        def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
            digits = evaluations[pl_module.updates // 10 - 1]
            Reporting.succeeds = [digit == "1" for digit in digits]

        def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            Reporting.succeeds = []

    trainer = make_trainer(
        callbacks=[Script(), Collector(10), metrics, *others], **{"max_epochs": len(evaluations), **settings}
    )
    trainer.fit(module, datamodule=source, ckpt_path=settings.get("ckpt_path"))
    return metrics, trainer


def test_episodes_that_do_not_report_are_counted(make_trainer: Any) -> None:
    metrics, _ = fit(make_trainer, ["0000", "1100", "1111", "0000"])
    assert metrics.seen == [
        {},  # nothing is known of a number that no episode has reported
        {"eval/success": 0.5, "eval/success_reported": 2, "eval/time": 7, "eval/time_reported": 2},
        {"eval/success": 1, "eval/time": 7},
        {"eval/success": 0, "eval/success_reported": 0},  # no value of an earlier evaluation
    ]


def test_resumed_run_knows_the_booleans(make_trainer: Any, tmp_path: Path) -> None:
    _, trainer = fit(make_trainer, ["1100"])
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    source, metrics = data(), Metrics()
    module = TD3(source.obs_dim, source.action_low, source.action_high, hidden_dims=[4])
    make_trainer(callbacks=[Collector(10), metrics], max_epochs=2).fit(
        module, datamodule=source, ckpt_path=tmp_path / "a.ckpt"
    )
    assert metrics.seen == [{"eval/success": 0, "eval/success_reported": 0}]


@pytest.mark.parametrize("monitor", ["eval/return", "val_loss", "train/critic_loss"])
def test_early_stopping_refuses_a_metric_without_values(monitor: str, make_trainer: Any) -> None:
    with pytest.raises(RuntimeError, match=f"conditioned on metric `{monitor}` which is not available"):
        fit(make_trainer, ["1111"], EarlyStopping(monitor))


@pytest.mark.parametrize("first", ["0000", "1000"])
def test_run_goes_on_when_a_monitor_has_no_value(first: str, make_trainer: Any, tmp_path: Path) -> None:
    best = BestCheckpoint("eval/time", dirpath=str(tmp_path))
    stop = EarlyStopping("eval/time", patience=3)
    _, trainer = fit(make_trainer, [first, "0000", "1100"], best, stop, enable_checkpointing=True)
    assert trainer.lightning_module.updates == 30  # type: ignore[attr-defined]
    (path,) = tmp_path.glob("*.ckpt")
    assert path.name == f"steps_{20 if '1' in first else 40}_time_7.00.ckpt"
    assert len(best.best_k_models) == 1
