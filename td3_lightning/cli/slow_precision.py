"""Warning for bfloat16 on CPUs that do not compute it in hardware."""

import sys
from pathlib import Path

from td3_lightning.reporting.console import echo

CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = {"avx512_bf16", "amx_bf16"}


def warn_of_slow_precision(precision: str) -> None:
    """Print a warning on stderr if a precision is slow on this CPU. Only Linux on x86 reports the necessary flags.

    Args:
        precision: Precision of the Trainer, for example "bf16-mixed".
    """
    flags = _cpu_flags()
    if precision.startswith("bf16") and flags and not flags & BF16_FLAGS:
        echo(
            f"Warning: trainer.precision {precision} is much slower than 32-true on this CPU, which has neither "
            "AVX512-BF16 nor AMX. Use --trainer.precision 32-true.",
            file=sys.stderr,
        )


def _cpu_flags() -> set[str]:
    """Return the flags of the first CPU. The set is empty if they are unknown."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
