"""Numbers that an episode reports to the logs."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from td3_lightning.errors import to_float

log = logging.getLogger(__name__)
MAX_NAMES = 100  # names from infos that a run logs
LOGGED = {  # names that training and evaluation log themselves
    *("return", "length", "return_mean", "return_std", "return_min", "return_max", "length_mean"),
    *("episode_return", "running_mean", "critic_loss", "actor_loss", "q_mean", "actor_lr", "critic_lr", "noise"),
    *("steps_per_second", "policy_checkpoint_return", "assessments", "encoder_loss", "encoder_lr"),
    *("n_step", "gamma", "updates_per_step"),
}


class ReportNames:
    """Limit the number of names that a run reports, because every new name adds a column to the logs."""

    def __init__(self) -> None:
        self._known: set[str] = set(LOGGED)
        self._full = False  # the warning was logged

    def limit(self, report: dict[str, float]) -> dict[str, float]:
        """Return a report without the names over the limit. Log a warning for the first of them."""
        if not report.keys() <= self._known:
            new = [name for name in report if name not in self._known]
            room = len(LOGGED) + MAX_NAMES - len(self._known)
            self._known.update(new[:room])
            if len(new) > room and not self._full:
                log.warning("info must have at most %d names, got more. Later names are not logged.", MAX_NAMES)
                self._full = True
        return {name: value for name, value in report.items() if name in self._known}


def scalar_info(info: dict[str, Any]) -> dict[str, float]:
    """Return the numbers and booleans of an `info` as floats, also those in arrays and tensors without axes.

    An integer beyond the float range becomes infinite. Names that the logs already use get the prefix `info_`.
    """
    return {name: float(value) for name, value in info_values(info).items()}


def info_values(info: dict[str, Any]) -> dict[str, float | bool]:
    """Return the numbers of an `info`, as `scalar_info` does, but booleans as booleans."""
    kinds = (bool, int, float, np.bool_, np.integer, np.floating)
    values = {" ".join(str(name).split()): _item(value) for name, value in info.items()}
    found = {name: _plain(value) for name, value in values.items() if isinstance(value, kinds)}
    return {f"info_{name}" if name in LOGGED else name: value for name, value in found.items()}


def _plain(value: Any) -> float | bool:
    return bool(value) if isinstance(value, bool | np.bool_) else to_float(value)


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
    """Return the number in an array or a tensor without axes, of any library, also on a GPU; other values unchanged."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
