"""Callback that keeps the checkpoint with the best evaluation."""

import copy
import re
from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_utilities.core.rank_zero import WarningCache
from torch import Tensor

from td3_lightning.checkpointing.last import barrier_on_error, same_folder, save_on_all_ranks, saving, warn_unsaved


class BestCheckpoint(ModelCheckpoint):
    """Keep the checkpoint with the best evaluation, without the replay.

    The name of the checkpoint has its environment steps, or its updates in an offline run, and the compared value, for
    example `steps_12000_return_231.50.ckpt`.

    Args:
        monitor: Metric to compare.
        mode: "max" keeps the largest value, "min" the smallest.
        dirpath: Folder of the checkpoint; None uses `checkpoints` in the run's folder.
    """

    def __init__(
        self, monitor: str = "eval/return_mean", mode: Literal["max", "min"] = "max", dirpath: str | None = None
    ) -> None:
        super().__init__(dirpath, None, monitor, mode=mode, auto_insert_metric_name=False)
        self._warnings = WarningCache()
        self._in_own_folder = False  # the loaded checkpoint is in this folder
        self._clock = "env_steps"

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Resolve the folder, and form the name of the checkpoint."""
        super().setup(trainer, pl_module, stage)
        self._clock = getattr(pl_module, "clock_name", self._clock)
        metric = re.sub(r"\W+", "_", str(self.monitor).removeprefix("eval/").removesuffix("_mean")).strip("_")[:100]
        # A loaded checkpoint may name only files of this form.
        self.filename = f"{self._clock.removeprefix('env_')}_{{clock}}_{metric}_{{value}}"

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note whether the run continues in its own folder."""
        self._in_own_folder = same_folder(Path(str(trainer.ckpt_path)).parent, self.dirpath)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the path of the best checkpoint, and adjust it if the run's folder was moved."""
        super().load_state_dict(self._moved(state_dict) if self._in_own_folder else state_dict)
        self.current_score = state_dict["current_score"]  # Lightning saves it but does not restore it

    def _moved(self, state: dict[str, Any]) -> dict[str, Any]:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath), Path(path).name)) if path else ""

        paths = {name: here(state[name]) for name in ("best_model_path", "kth_best_model_path", "last_model_path")}
        best = {here(path): score for path, score in state["best_k_models"].items()}
        return {**state, **paths, "best_k_models": best, "dirpath": self.dirpath}

    def format_checkpoint_name(
        self, metrics: dict[str, Tensor], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """Return a checkpoint's path, which has the clock and the monitored value."""
        clock, value = int(metrics.get(self._clock, metrics["step"])), float(metrics[str(self.monitor)])
        name = str(self.filename).format(clock=clock, value=f"{value:.2f}")
        return str(Path(str(self.dirpath), name + ("" if ver is None else f"-v{ver}") + self.FILE_EXTENSION))

    def file_exists(self, filepath: str | Path, trainer: L.Trainer) -> bool:
        """Return whether a kept checkpoint has this name. An evaluation repeated on resume overwrites its file."""
        return str(filepath) in self.best_k_models

    def _save_topk_checkpoint(self, trainer: L.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor not in monitor_candidates:
            self._warnings.warn(
                f"checkpoint.monitor {self.monitor} has no value after this evaluation, so no best checkpoint is "
                f"saved. The metrics are {', '.join(monitor_candidates)}."
            )
            return
        before = copy.deepcopy(self.state_dict())
        save = super()._save_topk_checkpoint
        with saving(trainer, lambda replay: None):
            error = save_on_all_ranks(trainer, lambda: save(trainer, monitor_candidates))
        if error is not None:
            self.load_state_dict(before)  # the previous list is still valid
            warn_unsaved(self._warnings, "the best checkpoint", error, self.best_model_path)

    def _save_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
        with barrier_on_error(trainer):
            super()._save_checkpoint(trainer, filepath)
