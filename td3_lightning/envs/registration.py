"""Registration of the environments with Gymnasium, without importing it: an exported policy does not need it."""

from types import ModuleType

from td3_lightning.envs.after_import import after_import


def register_environments() -> None:
    """Register the environments now if Gymnasium has been imported, otherwise when it is imported."""
    after_import("gymnasium", _register)


def _register(gymnasium: ModuleType) -> None:
    gymnasium.register(
        id="td3_lightning/CarRacing-v0",
        entry_point="td3_lightning.envs.car_racing:CarRacing",
        max_episode_steps=1000,
        reward_threshold=900,
    )
