"""Show episodes of the policy as animations in TensorBoard."""

import io
import math
from itertools import pairwise
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.envs.episode import Episode
from td3_lightning.errors import UsageError, require_int
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.video import Frame, check_renders, frames_per_second, make_filmed_env
from td3_lightning.training.data_module import ReplayData

MIN_DURATION = 2  # hundredths of a second per frame, the unit of GIF; browsers show shorter ones for 10


class EvalVideo(Callback):
    """Show the first episode of an evaluation as an animation under Images in TensorBoard.

    Nothing is shown if the Trainer has no `RunLogger`. The episode is played once more, in a separate environment with
    `render_mode` "rgb_array". It does not change the run: its metrics and its checkpoints are those of a run without
    this callback.

    Args:
        every_n_evaluations: Evaluations per animation.
        height: Height of the images in pixels, at most that of the environment.
        max_frames: Largest number of images. A longer episode is thinned out evenly.

    Raises:
        UsageError: A setting is too small.
    """

    def __init__(self, every_n_evaluations: int = 5, height: int = 160, max_frames: int = 200) -> None:
        super().__init__()
        self.every_n_evaluations = require_int("every_n_evaluations", every_n_evaluations, least=1)
        self.height = require_int("height", height, least=16)
        self.max_frames = require_int("max_frames", max_frames, least=2)
        self.evaluations = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Check that the environment renders images."""
        if stage == "fit":
            check_renders(trainer.datamodule)  # type: ignore[attr-defined]  # Lightning sets it without a type

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Play and log an episode before the first one of an evaluation that is due, with the same weights."""
        is_due = (self.evaluations + 1) % self.every_n_evaluations == 0
        if batch_idx or not is_due or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        logger = next((each for each in trainer.loggers if isinstance(each, RunLogger)), None)
        if logger is not None and trainer.is_global_zero:
            try:
                with isolate_rng():  # a constructor may use the global generators
                    gif = self._record(pl_module, trainer.datamodule)  # type: ignore[attr-defined]  # as above
            except UsageError as error:
                rank_zero_warn(f"EvalVideo shows no episode: {error} The run continues.")
                return
            logger.log_gif("eval/episode", gif, pl_module.clock)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count the evaluation. One that was interrupted is repeated, and so is its animation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.evaluations += 1

    def _record(self, module: TD3, data: ReplayData) -> bytes:
        """Play the episode and return it as a GIF."""
        camera, env = make_filmed_env(data, {})
        try:
            film = Animation(self.height, self.max_frames)
            camera.film = film.write
            Episode(env, data.eval_seeds.start).play(module.act)
            return film.as_gif(frames_per_second(env))
        finally:
            env.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of evaluations."""
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of evaluations."""
        self.evaluations = state_dict["evaluations"]


class Animation:
    """Keep at most `max_frames` images of an episode: each one, then every second one, and so on.

    Args:
        height: Largest height in pixels.
        max_frames: Largest number of images.
    """

    def __init__(self, height: int, max_frames: int) -> None:
        self.height, self.max_frames = height, max_frames
        self.images: list[Image.Image] = []
        self._every, self._seen = 1, 0

    def write(self, frame: Frame) -> None:
        """Add a frame."""
        if self._seen % self._every == 0:
            image = Image.fromarray(frame)
            image.thumbnail((image.width, self.height))
            self.images.append(image)
        self._seen += 1
        if len(self.images) > self.max_frames:
            self.images, self._every = self.images[::2], 2 * self._every

    def as_gif(self, fps: float) -> bytes:
        """Encode the images as a GIF that takes as long as the episode, at the given frames per second.

        Images are left out if they would follow each other too fast.
        """
        stride = math.ceil(MIN_DURATION * fps / 100 / self._every)
        images = self.images[::stride]
        ends = [round(100 * number * stride * self._every / fps) for number in range(len(images) + 1)]
        durations = [10 * (end - start) for start, end in pairwise(ends)]  # milliseconds
        file, (first, *later) = io.BytesIO(), images
        first.save(file, format="GIF", save_all=True, append_images=later, duration=durations, loop=0)
        return file.getvalue()
