"""TD3 (Twin Delayed DDPG) and TD7 on PyTorch Lightning."""

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` makes a name public for type checkers
    from td3_lightning.algorithm.encoders import Encoder as Encoder
    from td3_lightning.algorithm.encoders import Trunk as Trunk
    from td3_lightning.algorithm.networks import Actor as Actor
    from td3_lightning.algorithm.networks import Critics as Critics
    from td3_lightning.algorithm.pixel_encoder import Convolutions as Convolutions
    from td3_lightning.algorithm.td3 import TD3 as TD3
    from td3_lightning.algorithm.td7 import TD7 as TD7
    from td3_lightning.envs.car_racing import Pedals as Pedals
    from td3_lightning.envs.noise import ActionNoise as ActionNoise
    from td3_lightning.envs.noise import ObservationNoise as ObservationNoise
    from td3_lightning.envs.wrappers import ActionRepeat as ActionRepeat
    from td3_lightning.envs.wrappers import FlattenAction as FlattenAction
    from td3_lightning.envs.wrappers import SymmetricActionBounds as SymmetricActionBounds
    from td3_lightning.errors import EnvError as EnvError
    from td3_lightning.errors import LearnerError as LearnerError
    from td3_lightning.errors import RunError as RunError
    from td3_lightning.errors import UsageError as UsageError
    from td3_lightning.interop.policy import Policy as Policy
    from td3_lightning.replay.batch import Batch as Batch
    from td3_lightning.replay.buffer import Replay as Replay
    from td3_lightning.replay.hindsight import Hindsight as Hindsight
    from td3_lightning.replay.pixels import Pixels as Pixels
    from td3_lightning.reporting.learning_curve import Curve as Curve
    from td3_lightning.reporting.progress_bar import Progress as Progress
    from td3_lightning.schedules import Constant as Constant
    from td3_lightning.schedules import Linear as Linear
    from td3_lightning.schedules import Schedule as Schedule
    from td3_lightning.training.collector import Collector as Collector
    from td3_lightning.training.data_module import ReplayData as ReplayData
    from td3_lightning.training.dataset_source import Dataset as Dataset
    from td3_lightning.training.evaluation import SaveEvaluations as SaveEvaluations
    from td3_lightning.training.evaluation import StopWhenSolved as StopWhenSolved
    from td3_lightning.training.policy_checkpoint import PolicyCheckpoint as PolicyCheckpoint
    from td3_lightning.training.weight_averaging import AveragedWeights as AveragedWeights

__version__ = "0.2.0"

# Modules and their public names. A module is imported when one of its names is first used.
_NAMES = {
    "algorithm.encoders": ("Encoder", "Trunk"),
    "algorithm.networks": ("Actor", "Critics"),
    "algorithm.pixel_encoder": ("Convolutions",),
    "algorithm.td3": ("TD3",),
    "algorithm.td7": ("TD7",),
    "envs.car_racing": ("Pedals",),
    "envs.noise": ("ActionNoise", "ObservationNoise"),
    "envs.wrappers": ("ActionRepeat", "FlattenAction", "SymmetricActionBounds"),
    "errors": ("EnvError", "LearnerError", "RunError", "UsageError"),
    "interop.policy": ("Policy",),
    "replay.batch": ("Batch",),
    "replay.buffer": ("Replay",),
    "replay.hindsight": ("Hindsight",),
    "replay.pixels": ("Pixels",),
    "reporting.learning_curve": ("Curve",),
    "reporting.progress_bar": ("Progress",),
    "schedules": ("Constant", "Linear", "Schedule"),
    "training.collector": ("Collector",),
    "training.data_module": ("ReplayData",),
    "training.dataset_source": ("Dataset",),
    "training.evaluation": ("SaveEvaluations", "StopWhenSolved"),
    "training.policy_checkpoint": ("PolicyCheckpoint",),
    "training.weight_averaging": ("AveragedWeights",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["TD3", "TD7", *sorted(_MODULES.keys() - {"TD3", "TD7"})]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the names of this module, also those that were not used yet."""
    return sorted({*globals(), *__all__})


with contextlib.suppress(ModuleNotFoundError):  # optional: registers faster update rules
    importlib.import_module(f"{__name__}.fast")

if sys.modules.get("gymnasium"):  # an exported policy does not need it
    importlib.import_module(f"{__name__}.envs")
