"""Settings that this package adds to Lightning's Trainer."""

import pytest
import torch

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
