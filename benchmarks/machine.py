"""The machine, the commit and the versions behind a measurement."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from benchmarks.workloads import ROOT

PACKAGES = ("torch", "lightning", "stable_baselines3", "sbx-rl", "torchrl", "tianshou", "jax", "flax")


def describe(command: str, threads: int, pythons: Sequence[str] = ()) -> dict[str, str]:
    """Return the conditions of a run.

    Args:
        command: The module that runs, as in `python -m benchmarks.speed`.
        threads: The number of threads that are used.
        pythons: Interpreters whose packages are listed besides those of this one.
    """
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": f"python -m benchmarks.{command} {shlex.join(sys.argv[1:])}".strip(),
        "cpu": f"{cpu()}, {threads} of {os.cpu_count()} cores",
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        "load": f"{os.getloadavg()[0]:.1f} at the end; the benchmark adds at most {threads}",
        "versions": f"Python {platform.python_version()}; {versions([sys.executable, *pythons])}",
    }


def cpu() -> str:
    """Return the model name of the CPU."""
    found = re.search(r"model name\s*: (.*)", _cpuinfo())
    return found[1] if found else platform.machine()


def has_bf16() -> bool:
    """Return whether the CPU has instructions for bfloat16 matrix products."""
    return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", _cpuinfo()))


def commit() -> str:
    """Return the commit of the checkout, marked if tracked files differ from it; empty without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions(pythons: Sequence[str]) -> str:
    """Return the versions of the packages that are installed for any of the interpreters."""
    code = (
        "import sys; from importlib.metadata import version, PackageNotFoundError\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass"
    )
    lines = [
        line
        for python in dict.fromkeys(pythons)
        for line in subprocess.check_output([python, "-c", code, *PACKAGES], text=True).splitlines()
    ]
    return ", ".join(dict.fromkeys(lines))


def limit_cores(threads: int) -> int:
    """Restrict this process and its children to a number of cores, and return how many they have."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    return len(os.sched_getaffinity(0))


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""
