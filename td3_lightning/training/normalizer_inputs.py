"""Transitions that the Collector has stored and the agent's normalizers have not seen yet."""

from typing import Any

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.env_group import Step
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.unseen_observations import UnseenObservations, check_not_pixels
from td3_lightning.training.unseen_returns import UnseenReturns, check_rewards_are_raw


class NormalizerInputs:
    """Collect the observations and the returns of the training environments, and pass them on before an update."""

    def __init__(self) -> None:
        self.observations, self.returns = UnseenObservations(), UnseenReturns()

    def begin(self, module: TD3, data: ReplayData) -> None:
        """Start, or continue, the running episodes."""
        if module.settings.normalize_rewards:
            # After a step that has begun, an episode may be new, but its return belongs to the one before.
            self.returns.begin([1] * data.num_envs if data.envs.is_stepping else data.envs.episode_steps())

    def add(self, module: TD3, data: ReplayData, step: Step) -> None:
        """Add a step of all environments, for the normalizers that exist."""
        if module.settings.normalize_observations:
            self.observations.add(step)
        if module.settings.normalize_rewards:
            self.returns.add(step, data.replay.gamma)

    def pass_to(self, module: TD3) -> None:
        """Update the agent's normalizers. Every process must call this method."""
        self.observations.pass_to(module)
        self.returns.pass_to(module)

    def state_dict(self) -> dict[str, Any]:
        """Return what the normalizers have not seen."""
        return {**self.observations.state_dict(), **self.returns.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what the normalizers have not seen."""
        self.observations.load_state_dict(state)
        self.returns.load_state_dict(state)


def check_normalizers(module: TD3, data: ReplayData) -> None:
    """Raise `UsageError` if an agent normalizes frames, or rewards that it cannot normalize."""
    check_not_pixels(module, data)
    check_rewards_are_raw(module, data)
