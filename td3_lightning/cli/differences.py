"""Differences between the settings of a checkpoint and those of the configuration files."""

from collections.abc import Iterator, Mapping
from typing import Any

from jsonargparse import Namespace

from td3_lightning.cli.settings import kept
from td3_lightning.errors import UsageError


def check_same_environment(path: str, resumed: Namespace, staged: Namespace) -> None:
    """Raise `UsageError` if a checkpoint was trained in another environment than the configured one.

    Args:
        path: Path of the checkpoint.
        resumed: Settings in which the checkpoint overrides the files.
        staged: Settings in which the files override the checkpoint.
    """
    env_id, configured = resumed.data.env_id, staged.data.env_id
    if env_id != configured:
        raise UsageError(
            f"data.env_id must be {env_id}, as in {path}, got {configured}. Use the configuration of the checkpoint, "
            "or set --data.env_id to change the environment."
        )


def differences(taken: Namespace, left: Namespace) -> str:
    """List the settings whose values differ, for example "model.tau 0.01 (not 0.005)". Return "" if none differs.

    Args:
        taken: The settings that the command uses.
        left: The settings that it does not use.
    """
    return ", ".join(_differences(_compared(taken), _compared(left)))


def _compared(config: Namespace) -> dict[str, Any]:
    """Return the settings of a run without those that each start sets anew."""
    settings = kept(config.as_dict())
    settings.pop("seed_everything", None)
    settings["data"] = {name: value for name, value in settings["data"].items() if name != "empty_replay"}
    return settings


def _differences(taken: Mapping[str, Any], left: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in taken.items():
        other = left.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _differences(value, other, f"{prefix}{key}.")
        elif value != other:
            yield f"{prefix}{key} {value} (not {other})"
