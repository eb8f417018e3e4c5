"""Check environment variables that Lightning and Matplotlib read during their import."""

import importlib
import os
import sys
from typing import NoReturn

from td3_lightning.errors import refuse
from td3_lightning.tuning.node import COUNTS, RANKS

# Without one of these variables, no launcher has started the process, and Lightning would silence a rank above 0. A
# user who starts each rank of Lightning's own environment sets LOCAL_RANK and the common MASTER_PORT.
LAUNCHED = ("WORLD_SIZE", "SLURM_NTASKS", "JSM_NAMESPACE_SIZE")
REQUIRED = {"RANK": LAUNCHED, "LOCAL_RANK": (*LAUNCHED, "MASTER_PORT")}
# Lightning converts the variables to integers without a check, the ranks already during its import.
LEAST = {**dict.fromkeys(RANKS, 0), **dict.fromkeys(COUNTS, 1)}


def check_launcher_variables() -> None:
    """Print an error and end the process with status 2 if a variable is not a number, or is a rank of no launcher."""
    for name, least in LEAST.items():
        text = os.environ.get(name)
        if text is not None and not _is_number(text, least):
            _refuse(name, f"an integer of at least {least}", text, _launcher(name))
    for name, others in REQUIRED.items():
        text = os.environ.get(name, "0")
        if int(text) > 0 and os.environ.keys().isdisjoint(others):
            _refuse(name, "0 without WORLD_SIZE", text, _launcher(name))


def check_backend() -> None:
    """Print an error and end the process with status 2 if MPLBACKEND is not the name of a Matplotlib backend."""
    name = "MPLBACKEND"
    if name in os.environ:
        try:
            importlib.import_module("matplotlib")
        except ValueError:
            _refuse(name, "the name of a backend of Matplotlib", os.environ[name], f"Unset {name}, or use agg.")


def _launcher(name: str) -> str:
    return f"Unset {name}, or start the processes with torchrun or srun."


def _refuse(name: str, constraint: str, text: str, fix: str) -> NoReturn:
    print(refuse(name, constraint, text, fix), file=sys.stderr)
    raise SystemExit(2)


def _is_number(text: str, least: int) -> bool:
    try:
        return int(text) >= least
    except ValueError:
        return False
