"""Trainer with the additional commands `record`, `robustness`, `export` and `import`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.profilers import PassThroughProfiler

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import UsageError, check_at_least, require_int
from td3_lightning.interop.original_weights import read_weight_files, write_weight_files
from td3_lightning.reporting.console import echo, show
from td3_lightning.reporting.paths import absolute, shown
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from td3_lightning.training.data_module import ReplayData
from td3_lightning.training.data_settings import seed_range


class NullProfiler(PassThroughProfiler):
    """Measures nothing, as Lightning's own does, but without a generator for each of an update's forty contexts."""

    _nothing = nullcontext()

    def profile(self, action_name: str) -> nullcontext[None]:  # type: ignore[override]  # it is a context, too
        """A context in which nothing is measured."""
        return self._nothing


class Trainer(L.Trainer):
    """Lightning's Trainer, which can also record, and exchange weights with other programs."""

    start = Path()  # the working directory of the command line, which an environment may change later

    def record(
        self,
        model: TD3,
        datamodule: ReplayData,
        ckpt_path: str,
        episodes: int = 3,
        folder: str = "videos",
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Records episodes without noise as mp4 videos.

        Args:
            model: Whose policy is shown.
            datamodule: Where it acts.
            ckpt_path: The weights.
            episodes: Videos to make, an episode each.
            folder: Folder that they go to.
            env_kwargs: Further keyword arguments for the environment, such as {draw_rays: true} for the car.
        """
        from td3_lightning.reporting.video import record  # no other command needs an encoder of videos

        check_at_least("episodes", episodes, 1)
        model.load_state_dict(read_checkpoint(ckpt_path)["state_dict"])
        for video in record(model.eval(), datamodule, episodes, folder, env_kwargs):
            print(f"{shown(video.path, self.start)}: return {video.episode_return:.2f}, {video.frames} frames")

    def robustness(
        self,
        model: TD3,
        datamodule: ReplayData,
        ckpt_path: str,
        observation_noise: list[float] = [0.0, 0.001, 0.01],  # noqa: B006  # jsonargparse shows it in the help
        action_noise: list[float] = [0.0, 0.01, 0.03],  # noqa: B006
        episodes: int = 100,
        folder: str = "robustness",
    ) -> None:
        """Measure the returns of a policy under noise, and draw them against the level of noise.

        The episodes have the seeds of `test`. The noise of `data.wrappers` is replaced by the given levels.

        Args:
            model: Agent that acts.
            datamodule: Data module that makes the environment.
            ckpt_path: Checkpoint of the agent.
            observation_noise: Standard deviation of the relative observation noise at each level.
            action_noise: Standard deviation of the action noise at each level, in units of the range of an action.
            episodes: Number of episodes per level.
            folder: Folder of robustness.png and of episodes.csv, which has one row per episode.
        """
        from td3_lightning.reporting import robustness  # no other command draws noise levels

        levels = robustness.noise_levels(observation_noise, action_noise)
        seeds = seed_range("test", datamodule.test_seeds.start, require_int("episodes", episodes, least=1))
        target = absolute("folder", folder)
        model.load_state_dict(read_checkpoint(ckpt_path)["state_dict"])
        measured = []
        for one in robustness.measure(model.eval().act, datamodule, levels, seeds):
            echo(f"noise {one.level}: return {one.returns.mean():,.2f} over {len(one.episodes)} episodes")
            measured.append(one)
        show(robustness.robustness_table(measured))
        for path in robustness.write_report(measured, target, datamodule.env_id):
            echo(shown(path, self.start))

    def export(
        self,
        model: TD3,
        datamodule: ReplayData,
        ckpt_path: str,
        files: str,
        style: Literal["original", "notebook", "blog"] = "original",
    ) -> None:
        """Writes a checkpoint's weights, and Adam's state, as files of the original TD3.

        Args:
            model: Not used.
            datamodule: Not used.
            ckpt_path: The checkpoint.
            files: How the files' names begin, such as models/car for models/car_actor.
            style: Which program's names the layers get.
        """
        for file in write_weight_files(read_checkpoint(ckpt_path), files, style):
            print(shown(file, self.start))

    def import_weights(
        self, model: TD3, datamodule: ReplayData, ckpt_path: str | None, files: str, output: str | None = None
    ) -> None:
        """Makes a checkpoint from weight files of the original TD3, to test, to record and to train further.

        Training begins with a warm-up and an empty replay. Adam's state is taken over, its learning rate is not.

        Args:
            model: Which gets the weights.
            datamodule: Not used.
            ckpt_path: Not used.
            files: How the files' names begin, such as models/car for models/car_actor.
            output: The checkpoint; by default `files` with the ending .ckpt.
        """
        checkpoint = output or f"{files}.ckpt"
        if Path(checkpoint).exists():
            raise UsageError(f"{checkpoint} is there already; give the new checkpoint another place, with --output.")
        self.strategy.connect(model)
        model.trainer = self
        self.strategy.setup_optimizers(self)
        states = read_weight_files(model, files)
        for optimizer, state in zip(self.optimizers, states, strict=False):
            optimizer.load_state_dict(state)
        self.save_checkpoint(checkpoint)
        adam = "Adam's state" if states else "no state of Adam"
        print(f"{shown(checkpoint, self.start)}: weights and {adam}, after {model.updates:,} updates")


# A method cannot be defined under this name, but a command can have it.
setattr(Trainer, "import", Trainer.import_weights)
