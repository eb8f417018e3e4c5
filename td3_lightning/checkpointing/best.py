"""Callback that keeps the checkpoints with the best evaluations."""

import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_utilities.core.rank_zero import WarningCache
from torch import Tensor

from td3_lightning.algorithm.agent import CLOCKS
from td3_lightning.checkpointing.file_names import LIGHTNINGS, check_file_name
from td3_lightning.checkpointing.last import attempt, barrier_on_error, same_folder, saving, warn_unsaved


class BestCheckpoint(ModelCheckpoint):
    """Keeps the checkpoints with the best evaluations, without the replay; last.ckpt is kept beside them in any case.

    Args:
        monitor: Metric that is compared.
        mode: Which of its values are best, "max" or "min".
        save_top_k: How many checkpoints are kept; -1 keeps all.
        filename: Their name, with metrics in braces.
        dirpath: Their folder; None is `checkpoints` in the run's folder.
    """

    def __init__(
        self,
        monitor: str = "eval/return_mean",
        mode: Literal["max", "min"] = "max",
        save_top_k: int = 1,
        filename: str = "steps_{env_steps:.0f}_return_{eval/return_mean:.2f}",
        dirpath: str | None = None,
    ) -> None:
        super().__init__(dirpath, filename, monitor, save_top_k=save_top_k, mode=mode, auto_insert_metric_name=False)
        self._warnings = WarningCache()
        self._at_home = False  # the checkpoint that is loaded lies in this folder
        check_file_name("checkpoint.filename", self, (*LIGHTNINGS, *CLOCKS))

    @cached_property
    def state_key(self) -> str:
        """What its state is called in a checkpoint; Lightning asks for it at every hook."""
        return super().state_key

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Looks whether the run goes on in its own folder."""
        self._at_home = same_folder(Path(str(trainer.ckpt_path)).parent, self.dirpath)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the list of the best ones back, if the run goes on in its own folder, wherever that is by now."""
        super().load_state_dict(self._moved(state_dict) if self._at_home else state_dict)
        self.current_score = state_dict["current_score"]  # Lightning saves it and leaves it there
        self._keep_as_many_as_wanted()

    def _keep_as_many_as_wanted(self) -> None:
        """Forgets those beyond `save_top_k`, which may have been another number; their files stay."""
        if self.save_top_k < 0:
            return
        ranked = sorted(self.best_k_models, key=lambda path: self.best_k_models[path], reverse=self.mode == "max")
        self.best_k_models = {path: self.best_k_models[path] for path in ranked[: self.save_top_k]}
        # The one that goes next, once the list is full.
        full = 0 < self.save_top_k == len(self.best_k_models)
        self.kth_best_model_path = list(self.best_k_models)[-1] if full else ""
        if full:
            self.kth_value = self.best_k_models[self.kth_best_model_path]

    def _moved(self, state: dict[str, Any]) -> dict[str, Any]:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath), Path(path).name)) if path else ""

        paths = {name: here(state[name]) for name in ("best_model_path", "kth_best_model_path", "last_model_path")}
        best = {here(path): score for path, score in state["best_k_models"].items()}
        return {**state, **paths, "best_k_models": best, "dirpath": self.dirpath}

    def format_checkpoint_name(
        self, metrics: dict[str, Tensor], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """Make a checkpoint's path. The clocks are integers here, so that "{env_steps:07d}" is a format for them."""
        clocks = {name: metrics[name].long() for name in CLOCKS if name in metrics}
        return super().format_checkpoint_name({**metrics, **clocks}, filename, ver, prefix)

    def file_exists(self, filepath: str | Path, trainer: L.Trainer) -> bool:
        """Whether a name is taken, by one that is kept; what is repeated on resume writes its file again."""
        return str(filepath) in self.best_k_models

    def _save_topk_checkpoint(self, trainer: L.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        before = copy.deepcopy(self.state_dict())
        save = super()._save_topk_checkpoint
        with saving(trainer, lambda replay: None):
            error = attempt(trainer, lambda: save(trainer, monitor_candidates))
        if error is not None:
            self.load_state_dict(before)  # the ones before are still the best there are
            warn_unsaved(self._warnings, "the best checkpoint", error)

    def _save_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
        with barrier_on_error(trainer):
            super()._save_checkpoint(trainer, filepath)
