"""Validated settings of the data module."""

from dataclasses import dataclass

from td3_lightning.errors import UsageError, require_bool, require_float, require_int

MAX_EPISODES = 1_000_000  # in one evaluation
MAX_WORKERS = 256  # more than any machine benefits from, so that a file cannot start thousands of processes


@dataclass
class DataSettings:
    """Check and convert the settings of a `ReplayData` that neither an environment nor a replay checks.

    Raises:
        UsageError: A setting is out of range.
    """

    num_envs: int
    env_workers: int
    steps_per_epoch: int
    updates_per_step: float
    on_device: bool
    empty_replay: bool

    def __post_init__(self) -> None:
        self.num_envs = require_int("num_envs", self.num_envs, least=1)
        fix = "Use 0 to step the environments in the training process, or increase data.num_envs."
        most = min(self.num_envs, MAX_WORKERS)
        self.env_workers = require_int("env_workers", self.env_workers, least=0, most=most, fix=fix)
        self.steps_per_epoch = require_int("steps_per_epoch", self.steps_per_epoch, least=1)
        self.updates_per_step = require_float("updates_per_step", self.updates_per_step, above=0)
        if self.steps_per_epoch * self.updates_per_step < 1:
            raise UsageError(
                f"steps_per_epoch * updates_per_step must be at least 1, got {self.steps_per_epoch} * "
                f"{self.updates_per_step}. Use a larger steps_per_epoch."
            )
        self.empty_replay = require_bool("empty_replay", self.empty_replay)
        self.on_device = require_bool("on_device", self.on_device)

    @property
    def updates_per_epoch(self) -> int:
        """Return the number of updates between two evaluations."""
        return round(self.steps_per_epoch * self.updates_per_step)


def seed_range(stage: str, seed: int, episodes: int) -> range:
    """Return the seeds of an evaluation's episodes.

    Raises:
        UsageError: The seed is negative, or the number of episodes is out of range.
    """
    first = require_int(f"{stage}_seed", seed, least=0)
    return range(first, first + require_int(f"{stage}_episodes", episodes, least=1, most=MAX_EPISODES))
