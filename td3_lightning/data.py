"""The datamodule: it owns the environments, the replay, the loaders and their state."""

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import torch
from gymnasium.spaces import Box

from td3_lightning.checkpoint import refusal
from td3_lightning.envs import Episodes, FreshWorld, Settled, TrainEnvs, Wrapper, check_keeps_no_statistics
from td3_lightning.errors import UsageError, check_at_least, check_finite, one_line
from td3_lightning.guarded import Deadline
from td3_lightning.on_device import OnDevice
from td3_lightning.pixels import FrameStack, PixelReplay, Pixels
from td3_lightning.ranks import of_every_rank, of_this_rank, ranks
from td3_lightning.replay import Batch, Replay
from td3_lightning.schedules import Schedule
from td3_lightning.segments import FOLDER, UnfitError, with_rows

log = logging.getLogger(__name__)

WAYS = (
    "give a last.ckpt that lies in its run's folder, or begin with an empty replay, which the policy fills first "
    "(--data.empty_replay true)"
)
SavedReplay = Callable[[Replay], dict[str, Any] | None]  # what a checkpoint holds of the replay; None is nothing


class ReplayData(L.LightningDataModule):
    """Environments to train and evaluate in, and the replay between them and the learner.

    Args:
        env_id: Gymnasium's name of the environment, such as "Pendulum-v1" or "package:Name-v0".
        env_kwargs: Keyword arguments for making it.
        train_kwargs: Further keyword arguments for the training environments alone.
        wrappers: Wrappers around training and evaluation environments, the innermost first.
        pixels: How frames become observations, where the environment observes frames.
        num_envs: Training environments that step together.
        capacity: Rows that the replay keeps: a transition each, and one for each episode's end.
        batch_size: Transitions in a batch.
        gamma: Discount per environment step.
        n_step: Rewards summed before the value is asked; a number, or a schedule that begins with its largest.
        reward_scale: The learner sees rewards times this; returns are reported unscaled.
        steps_per_epoch: Environment steps between evaluations.
        updates_per_step: Updates for each environment step, whatever num_envs is.
        eval_episodes: Episodes of one evaluation.
        eval_seed: Seed of an evaluation's first episode; the others count up.
        test_episodes: Episodes of `test`.
        test_seed: Seed of the first episode of `test`; the others count up.
        on_device: Keep a copy of the replay's rows on a GPU that learns, and read batches there; not measured.
        step_timeout: Seconds that an environment may take for a step or a reset; None waits for ever.
        empty_replay: Begin with an empty replay and new episodes, whatever the checkpoint holds of them; the Collector
            fills it with `warmup_steps` steps of the policy first.

    Raises:
        UsageError: A setting is out of its range, the environment cannot be made, or its spaces are no boxes.
    """

    def __init__(
        self,
        env_id: str,
        env_kwargs: dict[str, Any] | None = None,
        train_kwargs: dict[str, Any] | None = None,
        wrappers: list[Wrapper] | None = None,
        pixels: Pixels | None = None,
        num_envs: int = 1,
        capacity: int = 1_000_000,
        batch_size: int = 256,
        gamma: float = 0.99,
        n_step: int | Schedule = 1,
        reward_scale: float = 1.0,
        steps_per_epoch: int = 5_000,
        updates_per_step: float = 1.0,
        eval_episodes: int = 10,
        eval_seed: int = 10_000,
        test_episodes: int = 10,
        test_seed: int = 50_000,
        on_device: bool = False,
        step_timeout: float | None = 600.0,
        empty_replay: bool = False,
    ) -> None:
        super().__init__()
        self.env_id, self.env_kwargs, self.train_kwargs = env_id, env_kwargs or {}, train_kwargs or {}
        self.wrappers, self.pixels = wrappers or [], pixels
        self.num_envs, self.step_timeout = int(num_envs), step_timeout
        check_at_least("steps_per_epoch", steps_per_epoch, 1)
        check_at_least("eval_episodes", eval_episodes, 1)
        check_at_least("test_episodes", test_episodes, 1)
        check_at_least("eval_seed", eval_seed, 0)
        check_at_least("test_seed", test_seed, 0)
        check_finite("reward_scale", reward_scale)
        if not 1 <= steps_per_epoch * updates_per_step < float("inf"):
            raise UsageError(
                f"An epoch is at least one update, but steps_per_epoch={steps_per_epoch} and "
                f"updates_per_step={updates_per_step} came; raise one of them."
            )
        self.updates_per_step, self.empty_replay = float(updates_per_step), empty_replay
        self.on_device = on_device
        self.eval_seeds = range(eval_seed, eval_seed + eval_episodes)
        self.test_seeds = range(test_seed, test_seed + test_episodes)
        self.eval_env = self.make_env()
        check_keeps_no_statistics(self.eval_env)
        weakref.finalize(self, self.eval_env.close)
        space = _box(self.eval_env.observation_space, "observations", env_id)
        actions = _box(self.eval_env.action_space, "actions", env_id)
        self.obs_dim = int(space.shape[0])
        self.action_low = [float(bound) for bound in actions.low]
        self.action_high = [float(bound) for bound in actions.high]
        make_replay = partial(Replay, self.obs_dim) if pixels is None else partial(PixelReplay, pixels)
        self.replay = make_replay(
            action_dim=len(self.action_low),
            capacity=capacity,
            batch_size=batch_size,
            batches_per_epoch=round(steps_per_epoch * updates_per_step),
            n_step=n_step,
            gamma=gamma,
            num_envs=num_envs,
            reward_scale=reward_scale,
        )
        self._envs: TrainEnvs | None = None
        self._last_episodes: dict[str, Any] | None = None  # running at the end of a fit that is over
        self._saved_replay: SavedReplay = Replay.state_dict

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuse to make environments from settings in a checkpoint, which would choose what is imported.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "A ReplayData must be made from your own settings, not from a checkpoint. Use ReplayData(...) and "
            "trainer.fit(..., ckpt_path=...)."
        )

    def make_env(self, **kwargs: Any) -> gym.Env:
        """Makes the environment with its wrappers; keyword arguments here win over the configured ones."""
        settings = {**self.env_kwargs, **kwargs}
        try:
            env = gym.make(self.env_id, **settings)
        except (gym.error.Error, ImportError) as error:
            raise UsageError(
                f"{self.env_id} cannot be made ({one_line(error)}); give a registered id, or package:Id where a "
                "package registers it, and install what it needs, such as td3_lightning[mujoco]."
            ) from error
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise self._unfit(settings, error) from error
        except (AssertionError, ValueError) as error:
            raise self._unfit(settings, error) from error
        if type(env.unwrapped).__module__ == "gymnasium.envs.box2d.bipedal_walker":
            env = FreshWorld(env)
        if type(env.unwrapped).__module__.startswith("pybullet_envs_gymnasium."):
            env = Settled(env)
        for wrapper in self.wrappers:
            env = self._wrapped(env, wrapper)
        if self.pixels is not None:
            env = FrameStack(env, self.pixels)
        return env if self.step_timeout is None else Deadline(env, self.step_timeout)

    def _unfit(self, settings: dict[str, Any], error: Exception) -> UsageError:
        return UsageError(
            f"{self.env_id} does not take {settings} ({one_line(error)}); change them in data.env_kwargs, "
            "data.train_kwargs or, for a record, env_kwargs."
        )

    def _wrapped(self, env: gym.Env, wrapper: Wrapper) -> gym.Env:
        try:
            return wrapper(env)
        except UsageError:
            raise
        except (gym.error.Error, AssertionError, ValueError) as error:
            parts = (wrapper, getattr(wrapper, "func", None), *getattr(wrapper, "args", ()))  # a configuration's call
            made_by = next((part for part in parts if isinstance(part, type)), wrapper)
            name = getattr(made_by, "__name__", type(wrapper).__name__)
            raise UsageError(f"{name} does not fit {self.env_id} ({one_line(error)}); change data.wrappers.") from error

    def begin_episodes(self) -> None:
        """Resets every training environment; what was running is closed as truncated."""
        for ring in self.replay.rings:
            ring.truncate()
        self.envs.reset(self.replay.steps_stored)

    @property
    def envs(self) -> TrainEnvs:
        """The training environments, there from `setup("fit")` to `teardown("fit")`."""
        if self._envs is None:
            raise UsageError('Training environments are wanted, but there are none yet; call setup("fit") first.')
        return self._envs

    def setup(self, stage: str) -> None:
        """Makes the training environments when they are needed."""
        if stage == "fit" and self._envs is None:
            envs = TrainEnvs(lambda: self.make_env(**self.train_kwargs), self.num_envs)
            try:
                self._check_spaces(envs.envs[0])
            except UsageError:
                envs.close()
                raise
            self._envs, self._last_episodes = envs, None

    def _check_spaces(self, env: gym.Env) -> None:
        """Raises `UsageError` for `train_kwargs` with other observations or actions than the evaluation's."""
        for what, came, wanted in (
            ("observations", env.observation_space.shape, self.eval_env.observation_space.shape),
            ("actions", env.action_space, self.eval_env.action_space),
        ):
            if came != wanted:
                raise UsageError(
                    f"With {self.train_kwargs} {self.env_id} has {what} {came}, but {wanted} without; give what "
                    "changes them to both, with data.env_kwargs."
                )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch where the learner is, which on a CPU is where it comes from."""
        is_there = device.type == "cpu" or (isinstance(batch, Batch) and batch.obs.device == device)
        return batch if is_there else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def train_dataloader(self) -> "Batches":
        """The replay: an epoch is so many freshly drawn batches."""
        learner = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
        return Batches(OnDevice(self.replay, learner) if self.on_device and learner.type != "cpu" else self.replay)

    def val_dataloader(self) -> Episodes:
        """The episodes of an evaluation, the same ones every time."""
        return Episodes(self.eval_env, self.eval_seeds)

    def test_dataloader(self) -> Episodes:
        """Episodes that no choice was made on."""
        return Episodes(self.eval_env, self.test_seeds)

    def teardown(self, stage: str) -> None:
        """Closes the training environments."""
        if stage == "fit" and self._envs is not None:
            self._last_episodes = self._envs.state_dict()
            self._envs.close()
            self._envs = None

    def on_exception(self, exception: BaseException) -> None:
        """Closes them too where a run ends by an exception, so that no simulator is left running."""
        self.teardown("fit")
        self._last_episodes = None  # an environment may have gone further than the replay

    @contextmanager
    def saving_replay(self, saved: SavedReplay) -> Iterator[None]:
        """Has the checkpoints that are saved meanwhile hold another form of the replay than the whole."""
        before, self._saved_replay = self._saved_replay, saved
        try:
            yield
        finally:
            self._saved_replay = before

    def state_dict(self) -> dict[str, Any]:
        """The replay and the running episodes, or those at the end of the last fit, of every rank."""
        return {"ranks": of_every_rank(self._state)}

    def _state(self) -> dict[str, Any]:
        replay = self._saved_replay(self.replay)
        if replay is None:
            return {}
        episodes = self._last_episodes if self._envs is None else self._envs.state_dict()
        return {"replay": replay} if episodes is None else {"replay": replay, "envs": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts them back; without training environments there is no use for them."""
        if self._envs is None or self.empty_replay:
            return
        states = state.get("ranks", [{}])
        own = of_this_rank(states)
        if own is None:
            raise UsageError(
                f"The checkpoint holds the replays of {len(states)} process(es), but {ranks()} came; go on with as "
                f"many (--trainer.devices {len(states)}), or begin with empty ones (--data.empty_replay true)."
            )
        if "replay" not in own:
            raise UsageError(f"A run goes on from its replay, but {self._path or 'the checkpoint'} holds none; {WAYS}.")
        self._load_replay(own["replay"])
        if "envs" in own:
            self._load_envs(own["envs"])

    @property
    def _path(self) -> Path | None:
        """The checkpoint that is being loaded, if a trainer does it."""
        path = self.trainer and self.trainer.ckpt_path
        return Path(path) if path else None

    def _load_replay(self, state: dict[str, Any]) -> None:
        path = self._path or Path()
        folder = path.parent / FOLDER
        if any(ring.get("segments") for ring in state["rings"]) and not folder.is_dir():
            raise UsageError(f"The replay of {path} was in {folder}, but that is not there; {WAYS}.")
        try:
            self.replay.load_state_dict(with_rows(state, folder))
        except UnfitError as unfit:
            raise refusal(unfit, path) from None

    def _load_envs(self, state: dict[str, Any]) -> None:
        lost = self.envs.load_state_dict(state)
        for env in lost:
            self.replay.rings[env].truncate()
        if lost:
            log.warning(
                "%s did not come back the same after replaying its actions, so %d running episode(s) "
                "were closed as truncated; the run goes on, but is not the same to the bit.",
                self.env_id,
                len(lost),
            )


@dataclass(frozen=True)
class Batches:
    """The replay as a loader.

    Its state is empty, for the datamodule keeps the replay's; that it has one tells the Trainer that an epoch may go
    on in its middle.
    """

    replay: Replay | OnDevice

    def __len__(self) -> int:
        return len(self.replay)

    def __iter__(self) -> Iterator[Batch]:
        return (self.replay.sample() for _ in range(len(self)))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _box(space: gym.Space[Any], what: str, env_id: str) -> Box:
    """The space as a one-dimensional box of floats, finite for actions, or a `UsageError` that says what to do."""
    if not isinstance(space, Box):
        wrapper = ", such as gymnasium.wrappers.FlattenObservation" if what == "observations" else ""
        raise UsageError(
            f"{env_id} has {what} in {space}, but TD3 is for a Box; choose an environment with continuous "
            f"{what}, or add a wrapper to data.wrappers{wrapper}."
        )
    if len(space.shape) == 3 and space.dtype == np.uint8:
        raise UsageError(
            f"{env_id} has {what} of shape {space.shape}, which are frames; give data.pixels and model.encoder, as "
            "car_pixels.yaml does."
        )
    if len(space.shape) != 1:
        raise UsageError(
            f"{env_id} has {what} of shape {space.shape}, but one axis is wanted; add a wrapper that flattens "
            "them to data.wrappers, such as gymnasium.wrappers.FlattenObservation."
        )
    if what == "actions" and not (space.is_bounded() and np.issubdtype(space.dtype, np.floating)):
        raise UsageError(
            f"{env_id} has actions in {space} of {space.dtype}, but TD3 needs a finite box of floats; add a wrapper "
            "that bounds them to data.wrappers."
        )
    return space
