"""The datamodule: it owns the environments, the replay, the loaders and their state."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning as L
import torch

from td3_lightning.algorithm.distributed import gather_from_ranks, ranks, select_rank
from td3_lightning.envs.episode import Episodes, check_keeps_no_statistics
from td3_lightning.envs.frame_stack import FrameStack
from td3_lightning.envs.lifetime import Lifetime, StepTimeout, close_env, name_of
from td3_lightning.envs.make import EnvId, Wrapper, check_box, env_name, make, wrapped
from td3_lightning.envs.reports import ReportNames
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.envs.wrappers import PyBulletWarmReset, RebuildBox2DWorld
from td3_lightning.errors import UsageError, require_bool, require_float, require_int
from td3_lightning.replay.buffer import Batch, Replay
from td3_lightning.replay.device import DeviceReplay
from td3_lightning.replay.pixels import PixelReplay, Pixels
from td3_lightning.schedules import Schedule
from td3_lightning.serialization.checkpoint_file import refusal
from td3_lightning.serialization.segment_files import FOLDER, UnfitError, with_rows

log = logging.getLogger(__name__)


RESUME_HINT = (
    "give a last.ckpt that lies in its run's folder, or begin with an empty replay, which the policy fills first "
    "(--data.empty_replay true)"
)

MAX_EPISODES = 1_000_000  # in one evaluation


SavedReplay = Callable[[Replay], dict[str, Any] | None]  # what a checkpoint holds of the replay; None is nothing


class ReplayData(L.LightningDataModule):
    """Environments to train and evaluate in, and the replay between them and the learner.

    Args:
        env_id: Gymnasium's name of the environment, such as "Pendulum-v1" or "package:Name-v0". In Python, also a
            function that returns a new environment at each call. Such a run is resumed from Python, by the same
            `ReplayData(...)`, and not from the command line.
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
        env_id: EnvId,
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
        self.env_id, self._source = env_name(env_id), env_id
        self.env_kwargs, self.train_kwargs = env_kwargs or {}, train_kwargs or {}
        self.wrappers, self.pixels = wrappers or [], pixels
        self.num_envs, self.step_timeout = require_int("num_envs", num_envs, least=1), step_timeout
        steps_per_epoch = require_int("steps_per_epoch", steps_per_epoch, least=1)
        self.updates_per_step = require_float("updates_per_step", updates_per_step, above=0)
        if steps_per_epoch * self.updates_per_step < 1:
            raise UsageError(
                f"steps_per_epoch * updates_per_step must be at least 1, got {steps_per_epoch} * {updates_per_step}. "
                "Use a larger steps_per_epoch."
            )
        self.empty_replay = require_bool("empty_replay", empty_replay)
        self.on_device = require_bool("on_device", on_device)
        self.eval_seeds = _seeds("eval", eval_seed, eval_episodes)
        self.test_seeds = _seeds("test", test_seed, test_episodes)
        self.eval_env = self.make_env()
        check_keeps_no_statistics(self.eval_env)
        if not isinstance(env_id, str):
            self.env_id = name_of(self.eval_env)
        space = check_box(self.eval_env, "observations", self.env_id)
        actions = check_box(self.eval_env, "actions", self.env_id)
        self.obs_dim = int(space.shape[0])
        self.action_low = [float(bound) for bound in actions.low]
        self.action_high = [float(bound) for bound in actions.high]
        make_replay = partial(Replay, self.obs_dim) if pixels is None else partial(PixelReplay, pixels)
        self.replay = make_replay(
            action_dim=len(self.action_low),
            capacity=capacity,
            batch_size=batch_size,
            batches_per_epoch=round(steps_per_epoch * self.updates_per_step),
            n_step=n_step,
            gamma=gamma,
            num_envs=self.num_envs,
            reward_scale=reward_scale,
        )
        self._names = ReportNames()  # of the numbers that evaluations report
        self._envs: TrainingVectorEnv | None = None
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
        """Make the environment with its wrappers; keyword arguments here override the configured ones."""
        env = make(self._source, {**self.env_kwargs, **kwargs})
        try:
            if type(env.unwrapped).__module__ == "gymnasium.envs.box2d.bipedal_walker":
                env = RebuildBox2DWorld(env)
            if type(env.unwrapped).__module__.startswith("pybullet_envs_gymnasium."):
                env = PyBulletWarmReset(env)
            for wrapper in self.wrappers:
                env = wrapped(env, wrapper)
            if self.pixels is not None:
                env = FrameStack(env, self.pixels.stack, self.pixels.height, self.pixels.width)
            return Lifetime(env) if self.step_timeout is None else StepTimeout(env, self.step_timeout)
        except BaseException:  # whatever a wrapper may raise
            close_env(env, self.env_id)
            raise

    def begin_episodes(self) -> None:
        """Resets every training environment; what was running is closed as truncated."""
        for ring in self.replay.rings:
            ring.truncate_episode()
        self.envs.reset(self.replay.steps_stored)

    @property
    def envs(self) -> TrainingVectorEnv:
        """The training environments, there from `setup("fit")` to `teardown("fit")`."""
        if self._envs is None:
            raise UsageError('Training environments are wanted, but there are none yet; call setup("fit") first.')
        return self._envs

    def setup(self, stage: str) -> None:
        """Makes the training environments when they are needed."""
        if stage == "fit" and self._envs is None:
            envs = TrainingVectorEnv(lambda: self.make_env(**self.train_kwargs), self.num_envs)
            try:
                for env in envs.envs:
                    self._check_is_new(env)
                    self._check_spaces(env)
            except UsageError:
                envs.close()
                raise
            self._envs, self._last_episodes = envs, None

    def _check_is_new(self, env: gym.Env) -> None:
        """Raise `UsageError` if a function returns the same environment twice, so that it would have two users."""
        if env.unwrapped is self.eval_env.unwrapped:
            raise UsageError(
                f"env_id must return a new environment at each call, got the same {self.env_id} twice. Create it "
                "inside the function, for example `lambda: MyEnv()`."
            )

    def _check_spaces(self, env: gym.Env) -> None:
        """Raise `UsageError` if `train_kwargs` change the observations or the actions."""
        for what, got, expected in (
            ("observations", env.observation_space.shape, self.eval_env.observation_space.shape),
            ("actions", env.action_space, self.eval_env.action_space),
        ):
            if got != expected:
                cause = f"train_kwargs {self.train_kwargs}" if self.train_kwargs else "another environment of this run"
                raise UsageError(
                    f"{self.env_id} must have the same {what} in training and evaluation, got {got} with {cause} and "
                    f"{expected} without. Use data.env_kwargs for what changes both."
                )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch where the learner is, which on a CPU is where it comes from."""
        is_there = device.type == "cpu" or (isinstance(batch, Batch) and batch.obs.device == device)
        return batch if is_there else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def train_dataloader(self) -> "Batches":
        """The replay: an epoch is so many freshly drawn batches."""
        learner = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
        return Batches(DeviceReplay(self.replay, learner) if self.on_device and learner.type != "cpu" else self.replay)

    def val_dataloader(self) -> Episodes:
        """The episodes of an evaluation, the same ones every time."""
        return Episodes(self.eval_env, self.eval_seeds, self._names)

    def test_dataloader(self) -> Episodes:
        """Episodes that no choice was made on."""
        return Episodes(self.eval_env, self.test_seeds, self._names)

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
        return {"ranks": gather_from_ranks(self._state)}

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
        own = select_rank(states)
        if own is None:
            raise UsageError(
                f"The checkpoint holds the replays of {len(states)} process(es), but {ranks()} came; go on with as "
                f"many (--trainer.devices {len(states)}), or begin with empty ones (--data.empty_replay true)."
            )
        if "replay" not in own:
            raise UsageError(
                f"A run goes on from its replay, but {self._path or 'the checkpoint'} holds none; {RESUME_HINT}."
            )
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
            raise UsageError(f"The replay of {path} was in {folder}, but that is not there; {RESUME_HINT}.")
        try:
            self.replay.load_state_dict(with_rows(state, folder))
        except UnfitError as unfit:
            raise refusal(unfit, path) from None

    def _load_envs(self, state: dict[str, Any]) -> None:
        lost = self.envs.load_state_dict(state)
        for env in lost:
            self.replay.rings[env].truncate_episode()
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

    replay: Replay | DeviceReplay

    def __len__(self) -> int:
        return len(self.replay)

    def __iter__(self) -> Iterator[Batch]:
        return (self.replay.sample() for _ in range(len(self)))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _seeds(stage: str, seed: int, episodes: int) -> range:
    """The seeds of the episodes of an evaluation."""
    first = require_int(f"{stage}_seed", seed, least=0)
    return range(first, first + require_int(f"{stage}_episodes", episodes, least=1, most=MAX_EPISODES))
