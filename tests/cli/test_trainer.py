"""Settings that this package adds to Lightning's Trainer."""

import torch

from td3_lightning.cli.settings import kept
from td3_lightning.cli.trainer import Trainer


def test_matmul_precision_is_set_and_stays() -> None:
    Trainer(float32_matmul_precision="medium", logger=False)
    Trainer(logger=False)
    assert torch.get_float32_matmul_precision() == "medium"


def test_a_resumed_run_keeps_its_matmul_precision() -> None:
    assert kept({"trainer": {"float32_matmul_precision": "medium", "max_epochs": 3}}) == {
        "trainer": {"float32_matmul_precision": "medium"}
    }
