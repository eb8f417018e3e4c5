"""The numbers that an episode reports for the logs."""

import logging
import math
from typing import Any

import numpy as np

log = logging.getLogger(__name__)


LOGGED = {  # names that training and evaluations have for their own numbers
    *("return", "length", "return_mean", "return_std", "return_min", "return_max", "length_mean"),
    *("episode_return", "running_mean", "critic_loss", "actor_loss", "q_mean", "actor_lr", "critic_lr", "noise"),
    "steps_per_second",
}


MOST_NAMES = 100  # numbers of infos that a run logs


class ReportNames:
    """The names of numbers that a run reports, bounded in number.

    An environment whose infos have new keys in every episode would otherwise add columns to the logs without end.
    """

    def __init__(self) -> None:
        self._known: set[str] = set(LOGGED)
        self._full = False  # that was announced

    def kept(self, report: dict[str, float]) -> dict[str, float]:
        """Return a report without the names that are too many; the first one is announced."""
        if not report.keys() <= self._known:
            new = [name for name in report if name not in self._known]
            room = len(LOGGED) + MOST_NAMES - len(self._known)
            self._known.update(new[:room])
            if len(new) > room and not self._full:
                log.warning("Infos have over %d names, so %s and later ones are not logged.", MOST_NAMES, new[room])
                self._full = True
        return {name: value for name, value in report.items() if name in self._known}


def scalar_info(info: dict[str, Any]) -> dict[str, float]:
    """Return the entries of an `info` that are single numbers or truth values, as floats.

    An integer beyond the float range becomes infinite. A name that the logs use already gets `info_` in front.
    """
    kinds = (bool, int, float, np.bool_, np.integer, np.floating)
    found = {" ".join(str(name).split()): _as_float(value) for name, value in info.items() if isinstance(value, kinds)}
    return {f"info_{name}" if name in LOGGED else name: value for name, value in found.items()}


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
