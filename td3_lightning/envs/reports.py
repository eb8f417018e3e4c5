"""Numbers that an episode reports to the logs."""

from collections.abc import Sequence
from typing import Any

LOGGED = {  # names that training and evaluation log themselves
    *("return", "length", "return_mean", "return_std", "return_min", "return_max", "length_mean"),
    *("episode_return", "running_mean", "critic_loss", "actor_loss", "q_mean", "actor_lr", "critic_lr", "noise"),
    *("steps_per_second", "policy_checkpoint_return", "assessments", "encoder_loss", "encoder_lr"),
    *("n_step", "gamma", "updates_per_step"),
}


def scalar_info(info: dict[str, Any]) -> dict[str, float]:
    """Return the numbers and booleans of an `info` as floats, also those in arrays and tensors without axes.

    An integer beyond the float range becomes infinite. Names that the logs already use get the prefix `info_`.
    """
    return {name: float(value) for name, value in info_values(info).items()}


def info_values(info: dict[str, Any]) -> dict[str, float | bool]:
    """Return the numbers of an `info`, as `scalar_info` does, but booleans as booleans."""
    values = {" ".join(str(name).split()): _item(value) for name, value in info.items()}
    found = {name: value for name, value in values.items() if isinstance(value, bool | int | float)}
    return {
        f"info_{name}" if name in LOGGED else name: value if isinstance(value, bool) else float(value)
        for name, value in found.items()
    }


def split_info(info: Any, envs: Sequence[int], num_envs: int) -> list[dict[str, Any]]:
    """Return the own values of some environments in the `info` of a vector environment.

    Args:
        info: Arrays with one value per environment. The mask "_name" tells which environments have a value "name".
        envs: Indices of the environments.
        num_envs: Number of all environments.
    """
    found: list[dict[str, Any]] = [{} for _ in envs]
    for name, values in info.items() if isinstance(info, dict) else ():
        if str(name).startswith("_") or tuple(getattr(values, "shape", ())) != (num_envs,):
            continue
        has_value = info.get(f"_{name}")
        for env, own in zip(envs, found, strict=True):
            if has_value is None or has_value[env]:
                own[name] = values[env]
    return found


def _item(value: Any) -> Any:
    """Return the number of an array or a tensor without axes, of any library, also on a GPU; other values unchanged."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
