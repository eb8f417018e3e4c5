"""Restoring of a replay buffer from a checkpoint and its segment files."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from td3_lightning.envs.checked import RestorableEnv
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.errors import UsageError
from td3_lightning.replay.buffer import Replay
from td3_lightning.serialization.checkpoint_file import refusal
from td3_lightning.serialization.primitives import as_arrays
from td3_lightning.serialization.segment_files import FOLDER, UnfitError, with_rows

log = logging.getLogger(__name__)

RESUME_HINT = (
    "Use a last.ckpt in the folder of its run, or start with an empty replay buffer, which the policy fills first "
    "(--data.empty_replay true)."
)
RESET_HINT = (
    "Draw random numbers from self.np_random, and rebuild in reset what an episode changes, if necessary in a wrapper."
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


def restore_episodes(
    envs: TrainingVectorEnv, eval_env: RestorableEnv, state: dict[str, Any], replay: Replay, env_id: str
) -> None:
    """Restore the running episodes, and compare the last evaluation episode. Log a warning if anything differs.

    Episodes that cannot be restored are truncated in the restored replay.

    Args:
        envs: Training environments.
        eval_env: Environment of the evaluations, which has played no episode.
        state: Saved state, with the entry "evaluation", and with "envs" unless no environment had begun.
        replay: Replay buffer.
        env_id: Name of the environment in the warning.
    """
    lost = envs.load_state_dict(state["envs"]) if "envs" in state else []
    difference = eval_env.difference(as_arrays(state["evaluation"]))
    for env in lost:
        replay.rings[env].truncate_episode()
    if not lost and not difference:
        return
    what = f"{len(lost)} running episode(s) of {env_id} could not be restored and count as truncated"
    if not lost:
        what = f"The evaluations of {env_id} do not continue exactly"
    steps = replay.steps_before + replay.steps_stored
    since = f"step {steps:,}" if steps else "the resume"
    hint = f"{RESET_HINT} `td3-lightning check-env` shows what differs." if envs.is_restorable else ""
    log.warning(
        f"{what}, because {envs.difference or difference}. From {since} on, the results differ from those of an "
        f"uninterrupted run. {hint}".strip()
    )
