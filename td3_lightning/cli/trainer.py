"""Trainer with the additional commands, and checks of settings that Lightning accepts and TD3 does not support."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import distributed

from td3_lightning import __version__
from td3_lightning.algorithm.td3 import TD3
from td3_lightning.errors import UsageError, require_int
from td3_lightning.reporting.console import echo, show
from td3_lightning.reporting.paths import absolute, shown
from td3_lightning.training.data_module import MAX_EPISODES, ReplayData, test_seeds

EPOCHS = "--trainer.max_epochs: an epoch has data.steps_per_epoch environment steps, and Lightning counts Adam's steps"

# Trainer settings that have no or another effect with manual optimization: the default and the replacement.
REPLACED_BY = {
    "max_steps": (-1, EPOCHS),
    "min_steps": (None, EPOCHS.replace("max", "min")),
    "gradient_clip_val": (None, "--model.max_grad_norm"),
    "accumulate_grad_batches": (1, "a larger --data.batch_size"),
    "barebones": (False, "--trainer.logger false and --trainer.enable_progress_bar false"),
    "overfit_batches": (0.0, "--trainer.limit_train_batches for short epochs"),
}


class Trainer(L.Trainer):
    """Lightning's Trainer with further commands, from `record` to `check-env`.

    Args:
        float32_matmul_precision: Precision in which this process multiplies float32 matrices from now on, see
            `torch.set_float32_matmul_precision`; None does not change it. On CPUs with AMX or AVX512-BF16, `medium`
            multiplies in bfloat16 and sums in float32, which is faster.
    """

    start = Path()  # the working directory of the command line, which an environment may change later

    def __init__(
        self, *args: Any, float32_matmul_precision: Literal["highest", "high", "medium"] | None = None, **kwargs: Any
    ) -> None:
        if float32_matmul_precision is not None:
            torch.set_float32_matmul_precision(float32_matmul_precision)
        super().__init__(*args, **kwargs)
        try:  # the package is optional
            from td3_lightning.fast.training_loop import FastTrainingLoop
        except ModuleNotFoundError:
            return
        FastTrainingLoop.install(self)

    # The first sentence of a method is the description of its command. The agents have the weights of the checkpoint.

    def record(
        self,
        model: TD3,
        datamodule: ReplayData,
        episodes: int = 3,
        folder: str = "videos",
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Record episodes without exploration noise as mp4 videos.

        Args:
            episodes: Number of episodes, one video for each.
            folder: Folder of the videos.
            env_kwargs: Additional keyword arguments of the environment, for example {draw_rays: true} for the car.
        """
        from td3_lightning.reporting.video import record_each  # only this command imports the video encoder

        require_int("episodes", episodes, 1, MAX_EPISODES)
        for number, video in enumerate(record_each(model, datamodule, episodes, folder, env_kwargs), 1):
            result = f"return {video.episode_return:.2f}, {video.frames} frames"
            echo(f"{number} of {episodes}  {shown(video.path, self.start)}: {result}")

    def collect(
        self,
        model: TD3,
        datamodule: ReplayData,
        dataset: str,
        episodes: int = 100,
        noise: float = 0.0,
    ) -> None:
        """Write episodes of a policy in the training environment as a Minari dataset, see `data.dataset`.

        Args:
            dataset: Name of the new dataset, for example lander/expert-v0. Its folder is in ~/.minari/datasets, or in
                the folder that the environment variable MINARI_DATASETS_PATH names.
            episodes: Number of episodes. Their seeds follow from seed_everything.
            noise: Standard deviation of the noise on the actions, relative to half the action range.
        """
        from td3_lightning.replay.dataset_writer import new_dataset_id, write_dataset
        from td3_lightning.replay.episodes import describe
        from td3_lightning.training.recorded_policy import dataset_space, record_episodes  # only for this command

        new = new_dataset_id(dataset)
        recorded = list(record_episodes(model, datamodule, episodes, noise))
        env: Any = datamodule.eval_env
        text = f"{datamodule.env_id}, {model.algorithm} after {model.env_steps:,} env_steps, noise {noise:g}"
        folder = write_dataset(new, recorded, dataset_space(env), env.action_space, model.algorithm, text)
        echo(f"{new}: {describe(recorded)}\n{shown(folder, self.start)}")

    def plot(self, model: TD3, datamodule: ReplayData, episodes: int = 3, folder: str = "plots") -> None:
        """Draw value estimates against observed returns, the actions, and for CarRacing the driven line.

        The episodes have the seeds of `test`.

        Args:
            episodes: Number of episodes.
            folder: Folder of values.png, actions.png and track.png.
        """
        from td3_lightning.reporting.policy_plots import write_policy_plots  # no other command draws policies

        require_int("episodes", episodes, 1, MAX_EPISODES)
        target = absolute("folder", folder)
        for path in write_policy_plots(model, datamodule, episodes, target):
            echo(shown(path, self.start))

    def robustness(
        self,
        model: TD3,
        datamodule: ReplayData,
        observation_noise: list[float] = [0.0, 0.001, 0.01],  # noqa: B006  # jsonargparse shows it in the help
        action_noise: list[float] = [0.0, 0.01, 0.03],  # noqa: B006
        episodes: int = 100,
        folder: str = "robustness",
    ) -> None:
        """Measure the returns of a policy under noise, and draw them against the level of noise.

        The episodes have the seeds of `test`. The noise of `data.wrappers` is replaced by the given levels.

        Args:
            observation_noise: Standard deviation of the relative observation noise at each level.
            action_noise: Standard deviation of the action noise at each level, in units of the range of an action.
            episodes: Number of episodes per level.
            folder: Folder of robustness.png and of episodes.csv, which has one row per episode.
        """
        from td3_lightning.reporting import robustness  # no other command draws noise levels

        levels = robustness.noise_levels(observation_noise, action_noise)
        seeds = test_seeds(datamodule.test_seeds.start, require_int("episodes", episodes, 1, MAX_EPISODES))
        target = absolute("folder", folder)
        target.mkdir(parents=True, exist_ok=True)  # fails before the episodes
        measured = []
        for one in robustness.measure(model.act, datamodule, levels, seeds):
            echo(f"noise {one.level}: return {one.returns.mean():,.2f}, episodes: {len(one.episodes)}")
            measured.append(one)
        show(robustness.robustness_table(measured))
        for path in robustness.write_report(measured, target, datamodule.env_id):
            echo(shown(path, self.start))

    def export(
        self,
        model: TD3,
        datamodule: ReplayData,
        checkpoint: dict[str, Any],
        format: Literal["onnx", "pt2", "weights"] = "weights",
        output: str | None = None,
        files: str | None = None,
        style: Literal["original", "notebook", "blog"] = "original",
    ) -> None:
        """Write the policy of a checkpoint as a file for deployment, or its weights as files of the original TD3.

        Args:
            format: "onnx" or "pt2" (torch.export) for the deterministic policy, "weights" for files of the original TD3
                with the Adam state.
            output: File of the policy, for example car.onnx.
            files: Common prefix of the files of weights, for example models/car for models/car_actor.
            style: Program whose layer names are used for weights.
        """
        target = export_target(format, output, files)
        if format == "weights":
            from td3_lightning.interop.original_weights import write_weight_files

            for file in write_weight_files(checkpoint, target, style):
                print(shown(file, self.start))
            return
        from td3_lightning.interop.metadata import checkpoint_metadata, commit
        from td3_lightning.interop.policy_file import NUM_CHECKED, write_policy  # only this command imports exporters

        versions = {"version": __version__, "commit": commit()}
        difference = write_policy(model, target, checkpoint_metadata(checkpoint, datamodule) | versions)
        of_agent = f"the agent's on {NUM_CHECKED:,} observations, to {difference:.1e} of their range"
        print(f"{shown(target, self.start)}: the actions equal {of_agent}")

    def import_weights(self, model: TD3, datamodule: ReplayData, files: str, output: str | None = None) -> None:
        """Create a checkpoint from weight files of the original TD3, for `test`, `record` and further training.

        Training starts with a warm-up and an empty replay buffer. The Adam state is imported, except the learning rate.

        Args:
            files: Common prefix of the files, for example models/car for models/car_actor.
            output: Path of the checkpoint; by default `files` with the suffix .ckpt.
        """
        from td3_lightning.interop.original_weights import read_weight_files

        path = output or f"{files}.ckpt"
        if Path(path).exists():
            raise UsageError(
                f"output must be a new file, got {shown(path, self.start)}, which exists. Use another --output."
            )
        self.strategy.connect(model)
        model.trainer = self
        self.strategy.setup_optimizers(self)
        states = read_weight_files(model, files)
        for optimizer, state in zip(self.optimizers, states, strict=False):
            optimizer.load_state_dict(state)
        self.save_checkpoint(path)
        adam = "Adam state" if states else "no Adam state"
        print(f"{shown(path, self.start)}: weights and {adam}, after {model.updates:,} updates")

    def check_env(self, model: TD3, datamodule: ReplayData, episodes: int = 3, steps: int = 1000) -> None:
        """Play random actions, and print whether runs in this environment can be resumed exactly, and what they cost.

        Args:
            episodes: Number of episodes that one environment plays before its last one is compared, at least 2.
            steps: Steps after which an episode without an end is left.
        """
        from td3_lightning.reporting.env_report import env_report  # no other command compares environments

        for line in env_report(datamodule, episodes, steps):
            echo(line)


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for Trainer settings that TD3 does not support."""
    for name, (default, instead) in REPLACED_BY.items():
        if settings[name] != default:
            raise UsageError(f"trainer.{name} must be {default}, got {settings[name]}. Use {instead}.")


def check_pixel_encoder(data: ReplayData, model: TD3) -> None:
    """Raise `UsageError` if the observations are images and the model has no encoder for them."""
    if data.pixels is not None and model.hparams.get("encoder") is None:
        raise UsageError(
            "data.pixels requires TD3 with model.encoder, got none. Use --model.encoder td3_lightning.Convolutions."
        )


def check_processes(trainer: L.Trainer) -> None:
    """Raise `UsageError` if a launcher has started more processes than the Trainer counts.

    Each of them would train alone, and only the first would write logs.
    """
    by_torchrun = distributed.is_available() and TorchElasticEnvironment.detect()
    by_slurm = "SLURM_PROCID" in os.environ
    started = int(os.environ.get("WORLD_SIZE" if by_torchrun else "SLURM_STEP_NUM_TASKS", "1"))
    if (by_torchrun or by_slurm) and started > trainer.world_size:
        raise UsageError(
            f"trainer.devices times trainer.num_nodes must be {started}, the number of processes of this run, got "
            f"{trainer.world_size}. Set both, or start independent runs with env -u SLURM_PROCID -u SLURM_NTASKS."
        )


def export_target(format: str, output: str | None, files: str | None) -> str:
    """Return `output`, or `files` for the format "weights"; raise `UsageError` for a path that does not fit."""
    name, example = ("files", "models/car") if format == "weights" else ("output", f"car.{format}")
    target, other = (files, output) if format == "weights" else (output, files)
    if target is None or other is not None:
        raise UsageError(f"export --format {format} requires --{name} alone, for example --{name} {example}.")
    if format != "weights" and Path(target).suffix != f".{format}":
        raise UsageError(f"output must end in .{format}, got {target}. Use {example}.")
    return target


# Methods cannot be defined under these names.
setattr(Trainer, "import", Trainer.import_weights)
setattr(Trainer, "check-env", Trainer.check_env)
