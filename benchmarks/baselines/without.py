"""td3_lightning without one part of `td3_lightning/fast`, to measure what the part gains in a whole training step."""

from typing import Any

from benchmarks.baselines import ours
from benchmarks.workloads import Workload
from td3_lightning.algorithm import update_rules
from td3_lightning.fast import manual_update, training_loop

PARTS: dict[str, tuple[Any, str, Any]] = {  # owner, name and value of what switches the part off
    "manual_update.py": (manual_update, "supports", lambda module: False),
    "update rules": (update_rules, "_factories", []),
    "adam.py": (manual_update, "supports_fast_step", lambda module, optimizer: False),
    "training_loop.py": (training_loop.FastTrainingLoop, "install", lambda trainer: None),
}


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end, without the part that the first flag names."""
    part, *others = flags
    owner, name, value = PARTS[part]
    getattr(owner, name)  # raises an error if it was renamed
    setattr(owner, name, value)
    ours.train(workload, others)
