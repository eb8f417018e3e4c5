"""Data module with the environments and the replay buffer."""

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import torch

from td3_lightning.algorithm.distributed import gather_from_ranks, select_rank, world_size
from td3_lightning.envs.checked import RestorableEnv, name_of
from td3_lightning.envs.episode import Episodes, check_keeps_no_statistics
from td3_lightning.envs.goals import Goals
from td3_lightning.envs.make import EnvId, Wrapper, close_env, env_name, make_wrapped
from td3_lightning.envs.spaces import check_box
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.envs.vector_source import OWN, VectorName, find_maker, make_training_envs
from td3_lightning.envs.wrappers import observation_parts, stack_frames
from td3_lightning.errors import UsageError, require_bool, require_int
from td3_lightning.replay.batch import Batches
from td3_lightning.replay.buffer import Replay
from td3_lightning.replay.hindsight import Hindsight, HindsightReplay
from td3_lightning.replay.pixels import PixelReplay, Pixels
from td3_lightning.schedules import Schedule, as_schedule
from td3_lightning.seeding import isolated_seed, run_seed
from td3_lightning.serialization.primitives import to_primitives
from td3_lightning.training.dataset_source import Dataset, DatasetSource
from td3_lightning.training.saved_replay import (
    RESUME_HINT,
    SavedReplay,
    restore_episodes,
    restore_replay,
)

EVAL_SEED, TEST_SEED = 10_000, 50_000  # of the first episodes; evaluations use the seeds between them
MAX_EPISODES = 1_000_000  # in one test
MAX_STEPS = 10**9  # in one epoch, and before the first update
MAX_UPDATES = 10_000  # per environment step


class ReplayData(L.LightningDataModule):
    """Hold the training and evaluation environments and the replay buffer.

    Args:
        env_id: Gymnasium id of the environment, for example "Pendulum-v1" or "package:Name-v0". Python users may pass
            a function that returns a new environment at each call. Such a run must be resumed from Python with the
            same `ReplayData(...)`, not from the command line.
        env_kwargs: Keyword arguments of all environments.
        train_kwargs: Additional keyword arguments of the training environments. With `env_kwargs: {render_mode:
            human}` and `train_kwargs: {render_mode: null}`, only the evaluations open a window.
        wrappers: Wrappers of the training and evaluation environments, innermost first.
        pixels: How frames become observations, if the environment observes frames.
        num_envs: Number of training environments, which step together.
        vector_env: What steps the training environments: "sync" (this process, in turn), "async" (one process each),
            "overlapped" (one process each, during the update, with actions of an older policy), "envpool", or
            "module:function", which is called as `function(env_id, num_envs=num_envs, **kwargs)` and returns a vector
            environment. Python users may pass the function.
        capacity: Rows in the replay buffer. Each transition takes one row, and each end of an episode takes one more.
        batch_size: Transitions per batch.
        gamma: Discount factor per environment step, or a schedule.
        n_step: Number of rewards in the n-step return, or a schedule that starts with its largest value.
        reward_scale: Factor on the rewards that the learner receives. Reported returns are unscaled.
        steps_per_epoch: Environment steps between evaluations.
        updates_per_step: Updates per environment step, for any num_envs; from 1 / steps_per_epoch to 10,000. With a
            schedule, every epoch has `steps_per_epoch` times its first value updates.
        eval_episodes: Episodes per evaluation.
        test_episodes: Episodes of `test`.
        test_seed: Seed of the first episode of `test`, at least 50,000. The next episodes use the next seeds.
        empty_replay: Start with an empty replay buffer and new episodes instead of those in the checkpoint. The
            Collector first fills the buffer with `warmup_steps` steps of the policy.
        priority_alpha: Exponent of the priorities for sampling (LAP), in [0, 1]. 0 samples uniformly. A value above 0
            requires `model.critic_loss: huber`.
        dataset: Minari dataset to learn from, alone or with the steps of the agent.
        her: Hindsight Experience Replay, for environments with goals.

    Raises:
        UsageError: A setting is out of range, the environment cannot be created, or a space is not supported.
    """

    _envs: TrainingVectorEnv | None = None
    _last_episodes: dict[str, Any] | None = None  # running episodes at the end of the last fit
    saved_replay: SavedReplay = staticmethod(Replay.state_dict)  # what a checkpoint contains of the replay

    def __init__(
        self,
        env_id: EnvId,
        env_kwargs: dict[str, Any] | None = None,
        train_kwargs: dict[str, Any] | None = None,
        wrappers: list[Wrapper] | None = None,
        pixels: Pixels | None = None,
        num_envs: int = 1,
        vector_env: VectorName = "sync",
        capacity: int = 1_000_000,
        batch_size: int = 256,
        gamma: float | Schedule = 0.99,
        n_step: int | Schedule = 1,
        reward_scale: float = 1.0,
        steps_per_epoch: int = 5_000,
        updates_per_step: float | Schedule = 1.0,
        eval_episodes: int = 10,
        test_episodes: int = 10,
        test_seed: int = TEST_SEED,
        empty_replay: bool = False,
        priority_alpha: float = 0.0,
        dataset: Dataset | None = None,
        her: Hindsight | None = None,
    ) -> None:
        super().__init__()
        self._seed = run_seed()  # before any code of the user
        self.num_envs = require_int("num_envs", num_envs, least=1)
        steps = require_int("steps_per_epoch", steps_per_epoch, least=1, most=MAX_STEPS)
        fix = f"Use at least 1 / data.steps_per_epoch and at most {MAX_UPDATES:,}."  # a smaller rate would seem to hang
        self.updates_per_step = as_schedule("updates_per_step", updates_per_step, 1 / steps, MAX_UPDATES, fix=fix)
        self.empty_replay = require_bool("empty_replay", empty_replay)
        self.offline = dataset is not None and dataset.offline
        self.dataset = None if dataset is None else DatasetSource(dataset, batch_size, priority_alpha, pixels)
        evaluated = require_int("eval_episodes", eval_episodes, 1, TEST_SEED - EVAL_SEED)
        self.eval_seeds, self.test_seeds = range(EVAL_SEED, EVAL_SEED + evaluated), test_seeds(test_seed, test_episodes)
        self.env_id, self._source = env_name(env_id), env_id
        self.env_kwargs, self.train_kwargs = dict(env_kwargs or {}), dict(train_kwargs or {})
        self.wrappers, self.pixels = list(wrappers or []), pixels
        self.vector_env = self._checked_vector_env(vector_env)
        self.is_overlapped = vector_env == "overlapped" and not self.offline  # environments step during the update
        self.eval_env = self._make_checked_eval_env()
        self.restorable_eval_env = RestorableEnv(self.eval_env)  # records the episodes of evaluations
        self.replay = self._replay_maker(her)(
            action_dim=len(self.action_low),
            capacity=capacity,
            batch_size=batch_size if self.dataset is None else self.dataset.own_batch_size,
            batches_per_epoch=round(steps * self.updates_per_step(0)),
            n_step=n_step,
            gamma=gamma,
            num_envs=self.num_envs,
            reward_scale=reward_scale,
            priority_alpha=priority_alpha,
        )

    def _checked_vector_env(self, vector_env: VectorName) -> VectorName:
        if vector_env in OWN:
            return vector_env
        if self.wrappers or self.pixels:
            raise UsageError(
                f"data.wrappers and data.pixels must not be set with data.vector_env {env_name(vector_env)}. Use them "
                "in its function, and in the registered environment of data.env_id."
            )
        find_maker(vector_env)
        return vector_env

    def _make_checked_eval_env(self) -> gym.Env:
        """Make the evaluation environment and read the sizes of its spaces."""
        env = self.make_env()
        weakref.finalize(self, close_env, env, self.env_id)
        check_keeps_no_statistics(env)
        if not isinstance(self._source, str):
            self.env_id = name_of(env)
        self.obs_dim = int(check_box(env, "observations", self.env_id).shape[0])
        actions = check_box(env, "actions", self.env_id)
        self.action_low, self.action_high = ([float(each) for each in bound] for bound in (actions.low, actions.high))
        return env

    def _replay_maker(self, her: Hindsight | None) -> Callable[..., Replay]:
        if her is not None:
            return partial(HindsightReplay, Goals(self.eval_env, self.env_id), her, self.obs_dim)
        return partial(Replay, self.obs_dim) if self.pixels is None else partial(PixelReplay, self.pixels)

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise `UsageError`, because settings in a checkpoint would choose what is imported."""
        raise UsageError(
            "A ReplayData must be made from your own settings, not from a checkpoint. Use ReplayData(...) and "
            "trainer.fit(..., ckpt_path=...)."
        )

    def make_env(self, **kwargs: Any) -> gym.Env:
        """Make the environment with its wrappers. Keyword arguments override `env_kwargs`."""
        with isolated_seed():
            return self._env_maker(**kwargs)()

    def _env_maker(self, **kwargs: Any) -> Callable[[], gym.Env]:
        wrappers = list(self.wrappers)
        if (pixels := self.pixels) is not None:
            wrappers.append(partial(stack_frames, stack=pixels.stack, height=pixels.height, width=pixels.width))
        return partial(make_wrapped, self._source, {**self.env_kwargs, **kwargs}, wrappers)

    def begin_episodes(self) -> None:
        """Reset every training environment and mark the running episodes as truncated."""
        for ring in self.replay.rings:
            ring.truncate_episode()
        earlier = max(self.replay.steps_before, 0)  # of the stages before; below 0 with an earlier agent's rows
        self.envs.reset(earlier + self.replay.steps_stored, self._seed)

    @property
    def envs(self) -> TrainingVectorEnv:
        """Return the training environments, which exist from `setup("fit")` to `teardown("fit")`."""
        if self._envs is None:
            raise UsageError('The training environments do not exist. Call setup("fit") first.')
        return self._envs

    def setup(self, stage: str) -> None:
        """Set the agent's clock and kind of observations. For `fit`, read the dataset and make the environments."""
        if self.trainer is not None:
            module: Any = self.trainer.lightning_module
            module.clock_name = "updates" if self.offline else "env_steps"
            module.observation_parts = observation_parts(self.eval_env)
        if stage == "fit" and self._envs is None:
            if self.dataset is not None:
                self.dataset.load(self.replay, self.eval_env)
            maker, kwargs = self._env_maker(**self.train_kwargs), {**self.env_kwargs, **self.train_kwargs}
            with isolated_seed():
                envs = make_training_envs(self.vector_env, maker, self.num_envs, self.env_id, self._source, kwargs)
            envs.require_match(self.eval_env, self.env_id)
            self._envs, self._last_episodes = envs, None

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch to the learner's device, unless this is the CPU."""
        return batch if device.type == "cpu" else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def train_dataloader(self) -> Batches:
        """Return a loader that samples the batches of one epoch."""
        return Batches(self.replay if self.dataset is None else self.dataset.mixed_with(self.replay))

    def val_dataloader(self) -> Episodes:
        """Return the evaluation episodes, which have the same seeds in every evaluation."""
        return Episodes(self.restorable_eval_env, self.eval_seeds)

    def test_dataloader(self) -> Episodes:
        """Return the test episodes, whose seeds differ from those of the evaluations."""
        return Episodes(self.eval_env, self.test_seeds)

    def teardown(self, stage: str) -> None:
        """Close the training environments after `fit`."""
        if stage == "fit" and self._envs is not None:
            self._last_episodes = self._envs.state_dict()
            self._envs.close()
            self._envs = None

    def on_exception(self, exception: BaseException) -> None:
        """Close the training environments after an exception."""
        if self._envs is not None:
            self._envs.close()
        self._envs = self._last_episodes = None  # an environment may be one step ahead of the replay

    def __getstate__(self) -> dict[str, Any]:
        """Leave the Trainer and the training environments, which `setup` makes, out of copies and pickles."""
        return {**vars(self), "trainer": None, "_envs": None}

    def state_dict(self) -> dict[str, Any]:
        """Return every rank's replay and episodes: the running ones, or those at the end of the last fit."""
        return {"ranks": gather_from_ranks(self._state)}

    def _state(self) -> dict[str, Any]:
        replay = self.saved_replay(self.replay)
        if replay is None:
            return {}
        episodes = self._last_episodes if self._envs is None else self._envs.state_dict()
        state = {"replay": replay, **({} if self.dataset is None else self.dataset.state_dict())}
        state["evaluation"] = to_primitives(self.restorable_eval_env.history(), "the evaluation environment")
        return state if episodes is None else {**state, "envs": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this rank's replay and episodes if the training environments exist."""
        states = state.get("ranks", [{}])
        if self._envs is None or self.empty_replay:
            return
        own = select_rank(states)
        if own is None:
            raise UsageError(
                f"The number of processes must be {len(states)}, as in the checkpoint, got {world_size()}. Use "
                f"--trainer.devices {len(states)}, or start with empty replay buffers (--data.empty_replay true)."
            )
        path = self.trainer and self.trainer.ckpt_path
        if "replay" not in own:
            source = path or "the checkpoint"
            raise UsageError(f"Resuming requires a replay buffer, but {source} has none. {RESUME_HINT}")
        restore_replay(self.replay, own["replay"], Path(path or ""))
        if self.dataset is not None:
            self.dataset.load_state_dict(own, self.replay)
        restore_episodes(self.envs, self.restorable_eval_env, own, self.replay, self.env_id)


def test_seeds(seed: int, episodes: int) -> range:
    """Return the seeds of the episodes of `test`.

    Raises:
        UsageError: An evaluation could use the seed, or the number of episodes is out of range.
    """
    fix = f"Use {TEST_SEED}, because evaluations use smaller seeds."
    first = require_int("test_seed", seed, least=TEST_SEED, fix=fix)
    return range(first, first + require_int("test_episodes", episodes, least=1, most=MAX_EPISODES))
