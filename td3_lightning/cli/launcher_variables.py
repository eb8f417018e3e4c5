"""Check the environment variables with which launchers number the processes of a run."""

import os
import sys
from typing import NoReturn

from td3_lightning.errors import refuse

# Lightning converts them to integers without a check, the ranks already during its import.
RANKS = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
)
COUNTS = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "JSM_NAMESPACE_SIZE", "MASTER_PORT")
# Without one of these variables, no launcher has started the process, and Lightning would silence a rank above 0. A
# user who starts each rank of Lightning's own environment sets LOCAL_RANK and the common MASTER_PORT.
LAUNCHED = ("WORLD_SIZE", "SLURM_NTASKS", "JSM_NAMESPACE_SIZE")
REQUIRED = {"RANK": LAUNCHED, "LOCAL_RANK": (*LAUNCHED, "MASTER_PORT")}
LEAST = {**dict.fromkeys(RANKS, 0), **dict.fromkeys(COUNTS, 1)}


def check_launcher_variables() -> None:
    """Print an error and end the process with status 2 if a variable is not a number, or is a rank of no launcher."""
    for name, least in LEAST.items():
        text = os.environ.get(name)
        if text is not None and not _is_number(text, least):
            _refuse(name, f"an integer of at least {least}", text)
    for name, others in REQUIRED.items():
        text = os.environ.get(name, "0")
        if int(text) > 0 and os.environ.keys().isdisjoint(others):
            _refuse(name, "0 without WORLD_SIZE", text)


def _refuse(name: str, constraint: str, text: str) -> NoReturn:
    fix = f"Unset {name}, or start the processes with torchrun or srun."
    print(refuse(name, constraint, text, fix), file=sys.stderr)
    raise SystemExit(2)


def _is_number(text: str, least: int) -> bool:
    try:
        return int(text) >= least
    except ValueError:
        return False
