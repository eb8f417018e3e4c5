"""Restoring of a replay buffer from a checkpoint and its segment files."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.errors import UsageError, shown
from td3_lightning.replay.buffer import Replay
from td3_lightning.serialization.checkpoint_file import refusal
from td3_lightning.serialization.segment_files import FOLDER, UnfitError, with_rows

log = logging.getLogger(__name__)

RESUME_HINT = (
    "Use a last.ckpt in the folder of its run, or start with an empty replay buffer, which the policy fills first "
    "(--data.empty_replay true)."
)
SavedReplay = Callable[[Replay], dict[str, Any] | None]  # returns the saved part of a replay, or None for nothing


def restore_replay(replay: Replay, state: dict[str, Any], path: Path) -> None:
    """Restore a replay buffer.

    Args:
        replay: The replay buffer.
        state: Its saved state. The rows may be in segment files.
        path: Path of the checkpoint, which segment files are next to.

    Raises:
        UsageError: A segment file is missing or damaged, or the state does not fit.
    """
    folder = path.parent / FOLDER
    if any(ring.get("segments") for ring in state["rings"]) and not folder.is_dir():
        raise UsageError(f"{path} requires its replay buffer in {folder}, which does not exist. {RESUME_HINT}")
    try:
        replay.load_state_dict(with_rows(state, folder))
    except UnfitError as unfit:
        raise refusal(unfit, path) from None


def restore_episodes(envs: TrainingVectorEnv, state: dict[str, Any], replay: Replay, env_id: str, reason: str) -> None:
    """Restore the running episodes. Truncate those that cannot be restored, and log a warning.

    Args:
        envs: The training environments.
        state: Their saved state.
        replay: The restored replay buffer.
        env_id: Name of the environment in the warning.
        reason: Changed settings of the environment in the warning; empty if there are none.
    """
    lost = envs.load_state_dict(state)
    for env in lost:
        replay.rings[env].truncate_episode()
    if lost:
        unknown = "it is not deterministic" if len(envs.obs) else "a vector environment cannot replay them"
        log.warning(
            f"{len(lost)} running episode(s) of {env_id} could not be restored and count as truncated, because "
            f"{reason or unknown}. The run resumes, but its results differ from those of an uninterrupted run."
        )


def changed_kwargs(saved: dict[str, Any], own: dict[str, Any]) -> str:
    """Return which keyword arguments of the environment have changed, as a reason; empty if none has."""
    names = sorted(str(name) for name in {**saved, **own} if saved.get(name) != own.get(name))
    return f"these arguments of the environment have changed: {shown(', '.join(names))}" if names else ""
