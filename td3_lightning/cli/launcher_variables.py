"""Check the environment variables with which launchers number the processes of a run."""

import os
import sys

from td3_lightning.errors import refuse

# Lightning converts them to integers without a check, the ranks already during its import.
RANKS = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
)
COUNTS = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "JSM_NAMESPACE_SIZE", "MASTER_PORT")
LEAST = {**dict.fromkeys(RANKS, 0), **dict.fromkeys(COUNTS, 1)}


def check_launcher_variables() -> None:
    """Print an error and end the process with status 2 if a variable is not a number."""
    for name, least in LEAST.items():
        text = os.environ.get(name)
        if text is not None and not _is_number(text, least):
            fix = f"Unset {name}, or start the processes with torchrun or srun."
            print(refuse(name, f"an integer of at least {least}", text, fix), file=sys.stderr)
            raise SystemExit(2)


def _is_number(text: str, least: int) -> bool:
    try:
        return int(text) >= least
    except ValueError:
        return False
