"""Current names of classes and values in checkpoints of earlier versions."""

from typing import Any

CLASSES = {
    "td3_lightning.car_racing.Pedals": "td3_lightning.envs.car_racing.Pedals",
    "td3_lightning.encoders.Trunk": "td3_lightning.algorithm.encoders.Trunk",
    "td3_lightning.envs.ActionRepeat": "td3_lightning.envs.wrappers.ActionRepeat",
    "td3_lightning.pixels.Convolutions": "td3_lightning.algorithm.pixel_encoder.Convolutions",
}
VALUES = {("gradients", "by hand"): "manual"}
REMOVED = {"on_device", "eval_seed"}  # settings that have no effect on a policy


def use_current_names(settings: Any) -> Any:
    """Return a copy of settings from a checkpoint in which classes and values have their current names."""
    if isinstance(settings, list):
        return [use_current_names(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    return {key: _current(key, value) for key, value in settings.items() if key not in REMOVED}


def _current(key: Any, value: Any) -> Any:
    if isinstance(value, str):
        return CLASSES.get(value, value) if key == "class_path" else VALUES.get((key, value), value)
    return use_current_names(value)
