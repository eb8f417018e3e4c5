"""Test the warning for bfloat16 on CPUs without hardware support."""

from pathlib import Path

import pytest

from td3_lightning.cli import slow_precision
from td3_lightning.cli.app import main

WARNING = "Warning: trainer.precision bf16-mixed is much slower than 32-true on this CPU, which has neither"
SMALL = [
    *("--data.env_id=Pendulum-v1", "--data.steps_per_epoch=2", "--data.batch_size=2", "--data.eval_episodes=1"),
    *("--collector.warmup_steps=4", "--model.hidden_dims=[4]", "--trainer.max_epochs=1", "--trainer.logger=false"),
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"),
]


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Replace /proc/cpuinfo with a file that a test writes."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(slow_precision, "CPUINFO", path)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize(
    ("text", "is_slow"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", False),
        ("processor : 0\nflags\t\t: fpu avx2 amx_bf16 amx_tile\n", False),
        ("processor : 0\nflags\t\t: fpu avx2 avx512f\n", True),
        ("processor : 0\nFeatures\t: fp asimd\n", False),  # ARM
        (None, False),  # not Linux
    ],
)
def test_warning_depends_on_cpu_flags(
    text: str | None, is_slow: bool, cpuinfo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        cpuinfo.write_text(text)
    slow_precision.warn_of_slow_precision("bf16-mixed")
    slow_precision.warn_of_slow_precision("32-true")
    error = capsys.readouterr().err
    assert error.count("\n") == is_slow
    assert error.startswith(WARNING if is_slow else "")


@pytest.mark.parametrize(("precision", "count"), [("bf16-mixed", 1), ("32-true", 0)])
def test_fit_warns_at_the_start(precision: str, count: int, cpuinfo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpuinfo.write_text("flags : fpu avx2\n")
    assert main(["fit", *SMALL, f"--trainer.precision={precision}"]) == 0
    assert capsys.readouterr().err.count(WARNING) == count
