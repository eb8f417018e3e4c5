"""Settings that this package adds to Lightning's Trainer."""

import pytest
import torch

from td3_lightning import UsageError
from td3_lightning.cli import checks
from td3_lightning.cli.settings import kept
from td3_lightning.cli.trainer import Trainer


@pytest.mark.parametrize("precision", ["high", "medium", "highest"])
def test_matmul_precision_is_set(precision: str) -> None:
    Trainer(float32_matmul_precision=precision, logger=False)  # type: ignore[arg-type]
    assert torch.get_float32_matmul_precision() == precision


def test_matmul_precision_of_the_user_stays() -> None:
    torch.set_float32_matmul_precision("high")
    Trainer(logger=False)
    assert torch.get_float32_matmul_precision() == "high"


def test_a_resumed_run_keeps_its_matmul_precision() -> None:
    assert kept({"trainer": {"float32_matmul_precision": "medium", "max_epochs": 3}}) == {
        "trainer": {"float32_matmul_precision": "medium"}
    }


@pytest.mark.parametrize("devices", [9, 100_000, "100000"])
def test_devices_are_limited_by_the_cores(devices: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.os, "cpu_count", lambda: 2)
    defaults = {name: default for name, (default, _) in checks.REPLACED_BY.items()}
    others = {**defaults, "log_every_n_steps": None, "check_val_every_n_epoch": 1, "val_check_interval": None}
    for accepted in (8, "8", "auto", [0, 1], -1):
        checks.check_trainer({**others, "devices": accepted})
    with pytest.raises(UsageError, match=r"^trainer.devices must be at most 8 on this machine, got '?\d+'?\. Use 1"):
        checks.check_trainer({**others, "devices": devices})
