"""Restoring of a replay buffer from a checkpoint and its segment files."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.errors import UsageError
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
    """Restore a replay buffer from its saved state. Its rows may be in segment files next to the checkpoint at `path`.

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


def restore_episodes(envs: TrainingVectorEnv, state: dict[str, Any], replay: Replay, env_id: str) -> None:
    """Restore the running episodes. Truncate the others in the restored replay, and log a warning."""
    lost = envs.load_state_dict(state)
    for env in lost:
        replay.rings[env].truncate_episode()
    if lost:
        reason = (
            "it has changed or is not deterministic" if len(envs.obs) else "a vector environment cannot replay them"
        )
        log.warning(
            f"{len(lost)} running episode(s) of {env_id} could not be restored and count as truncated, because "
            f"{reason}. The run resumes, but its results differ from those of an uninterrupted run."
        )
