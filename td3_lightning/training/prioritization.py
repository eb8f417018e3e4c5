"""Update of the priorities after each update of the critics."""

from collections.abc import Mapping

from torch import Tensor

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import UsageError
from td3_lightning.replay.buffer import Replay

TD_ERROR = "td_error"  # name in the outputs of a training step
RESET_INTERVAL = 250  # updates; that of the authors' TD7


def update_priorities(module: TD3, replay: Replay, outputs: Mapping[str, Tensor]) -> None:
    """Set the priorities of the last batch, if the replay is prioritized, before the next batch is sampled.

    The priority of new transitions is reset every `target_update_freq` updates, or every 250 without that setting.

    Raises:
        UsageError: The training step did not return the TD errors.
    """
    if replay.priorities is None:
        return
    if TD_ERROR not in outputs:
        got = ", ".join(outputs) or "none"
        raise UsageError(
            f"data.priority_alpha requires a training_step that returns {TD_ERROR}, got {got}. Use TD3.critic_loss, or "
            "--data.priority_alpha 0."
        )
    replay.priorities.update(outputs[TD_ERROR])
    if module.updates % (module.settings.target_update_freq or RESET_INTERVAL) == 0:
        replay.priorities.reset_max_priority()
