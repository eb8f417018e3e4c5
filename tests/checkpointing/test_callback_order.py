"""Order of a run's callbacks, and Lightning's counters that exact resume depends on."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, Timer, TQDMProgressBar

from run_comparison import Stops, differences, rows
from td3_lightning import TD3, AveragedWeights, Collector, ReplayData, checkpointing
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.interruption import EPOCH_PROGRESS, TRAINING_PROGRESS, SaveOnFailure, StopOnSignal
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.checkpointing.last import VALIDATION_PROGRESS, LastCheckpoint
from td3_lightning.checkpointing.log_rollback import LogRollback
from td3_lightning.errors import EnvError, ExitOnSignal, UsageError
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.serialization.checkpoint_file import read_checkpoint


class Record(Callback):
    """Callback that must run before a signal can stop the run."""


def test_order_of_callbacks() -> None:
    collector, best, record, bar = Collector(), BestCheckpoint(dirpath="there"), Record(), TQDMProgressBar()
    average, stopper, keeper = AveragedWeights(), EarlyStopping("eval/return_mean"), ModelCheckpoint()
    given = [keeper, stopper, average, bar]
    ordered = checkpointing.callbacks(collector, best, given, [record])
    own = [bar, average, collector, record, stopper, best, keeper]
    assert [each for each in ordered if each in own] == own
    kinds = [type(each) for each in ordered if each not in own]
    assert kinds == [SaveOnFailure, StopOnSignal, LogRollback, LastCheckpoint]
    assert [type(each) for each in ordered[1:7]] == [
        *(SaveOnFailure, AveragedWeights, Collector, Record, StopOnSignal, LogRollback)
    ]
    assert ordered[-1].dirpath == best.dirpath  # type: ignore[attr-defined]


def fit(folder: Path, *others: Callback, callbacks: list[Callback] | None = None, **settings: Any) -> None:
    """Train with a plain Trainer, from last.ckpt if there is one and `settings` names no other checkpoint."""
    L.seed_everything(1, verbose=False)
    last = folder / "checkpoints" / "last.ckpt"
    ckpt_path = settings.pop("ckpt_path", last if last.exists() else None)
    data = ReplayData(
        "Pendulum-v1", {"max_episode_steps": 9}, batch_size=4, capacity=100, steps_per_epoch=12, eval_episodes=2
    )
    trainer = L.Trainer(
        accelerator="cpu",
        callbacks=callbacks or checkpointing.callbacks(Collector(warmup_steps=20), BestCheckpoint(), others),
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=5,
        logger=RunLogger(str(folder), name="", version=""),
        max_epochs=3,
        num_sanity_val_steps=0,
        plugins=[AtomicCheckpointIO()],
        **settings,
    )
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(8,))
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)


def test_time_limit_ends_a_run_after_an_epoch(tmp_path: Path) -> None:
    fit(tmp_path / "whole")
    fit(tmp_path / "stopped", Timer(timedelta(microseconds=1)))
    assert read_checkpoint(tmp_path / "stopped" / "checkpoints" / "last.ckpt")["clocks"]["updates"] == 12
    fit(tmp_path / "stopped")
    last = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("whole", "stopped")]
    assert [name for name in differences(*last) if "BestCheckpoint" not in name] == []
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")


@pytest.mark.parametrize(
    ("moment", "sent_at", "saved_at"), [("on_train_batch_start", 17, 18), ("on_validation_batch_end", 24, 24)]
)
def test_plain_trainer_resumes_bit_exactly(moment: str, sent_at: int, saved_at: int, tmp_path: Path) -> None:
    fit(tmp_path / "whole")
    with pytest.raises(ExitOnSignal):
        fit(tmp_path / "stopped", Stops(moment, sent_at))
    assert read_checkpoint(tmp_path / "stopped" / "checkpoints" / "last.ckpt")["clocks"]["updates"] == saved_at
    fit(tmp_path / "stopped")
    folders = [tmp_path / name for name in ("whole", "stopped")]
    last = [folder / "checkpoints" / "last.ckpt" for folder in folders]
    assert [name for name in differences(*last) if "BestCheckpoint" not in name] == []
    assert rows(folders[0]) == rows(folders[1])
    names = [sorted(path.name for path in folder.glob("checkpoints/*.ckpt")) for folder in folders]
    assert names[0] == names[1]


class SavesAt(Callback):
    """Save a checkpoint in a hook after a number of updates, as a user's callback may do."""

    def __init__(self, hook: str, path: Path, updates: int) -> None:
        self.path, self.updates = path, updates
        setattr(self, hook, self._save)

    def _save(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
        if module.updates == self.updates:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(
    ("hook", "updates", "settings"),
    [
        *(("on_train_batch_end", updates, {}) for updates in (13, 36)),  # an evaluation follows update 36
        ("on_train_batch_end", 14, {"val_check_interval": 7, "check_val_every_n_epoch": None}),
        ("on_train_batch_end", 12, {"limit_val_batches": 0}),
        ("on_validation_start", 12, {}),
        ("on_validation_batch_end", 12, {}),
        ("on_train_epoch_start", 12, {}),
        ("on_train_epoch_start", 24, {"check_val_every_n_epoch": 2}),
    ],
)
def test_checkpoint_of_user_resumes(hook: str, updates: int, settings: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoints" / "user.ckpt"
    fit(tmp_path / "run", SavesAt(hook, path, updates), **settings)
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    fit(tmp_path / "run", ckpt_path=path, **settings)
    last = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("whole", "run")]
    changed = [name for name in differences(*last) if "BestCheckpoint" not in name]
    assert [name for name in changed if "epoch_progress" not in name] == []  # Lightning's, without an effect
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_update_whose_start_failed_is_not_counted(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_train_batch_start(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
            if module.updates == 14:
                raise EnvError("lost")

    with pytest.raises(EnvError, match="lost"):
        fit(tmp_path / "run", Fails())
    loops = read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["loops"]["fit_loop"]
    assert set(loops[TRAINING_PROGRESS]["total"].values()) == {14}


def test_used_callbacks_keep_checkpoints_of_another_agent(tmp_path: Path) -> None:
    callbacks = checkpointing.callbacks(Collector(warmup_steps=20), BestCheckpoint())
    fit(tmp_path / "first", callbacks=callbacks)
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    before = last.read_bytes()
    with pytest.raises(UsageError, match="must have the TD3 of its first fit"):
        fit(tmp_path / "second", callbacks=callbacks)
    assert last.read_bytes() == before


def test_lightning_has_the_loop_counters() -> None:
    trainer = L.Trainer(accelerator="cpu", logger=False)
    loop: Any = trainer.fit_loop
    for name in ("_can_stop_early", "on_advance_end"):
        assert hasattr(type(loop), name), name
    assert hasattr(loop, "_data_fetcher")
    assert isinstance(loop.epoch_loop.total_batch_idx, int)
    state = loop.state_dict()
    for name in (TRAINING_PROGRESS, VALIDATION_PROGRESS, EPOCH_PROGRESS):
        assert state[name]["total"].keys() >= {"ready", "started", "processed", "completed"}
        assert state[name].keys() >= {"current", "total"}
    for name in (TRAINING_PROGRESS, VALIDATION_PROGRESS):
        assert "is_last_batch" in state[name]


@pytest.mark.parametrize("name", ["metrics.csv", ".metrics.csv.unfinished", "events.out.tfevents.1", "hparams.yaml"])
@pytest.mark.parametrize("exists", [True, False])
def test_resume_refuses_symlinks_out_of_the_run(name: str, exists: bool, tmp_path: Path) -> None:
    fit(tmp_path / "run")
    outside = tmp_path / "outside"
    if exists:
        outside.write_text("env_steps,secret\n1,2\n3,4\nhalf a row")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(UsageError, match=rf"{name} must be a file of the run, got a symlink to .*outside\. Replace"):
        fit(tmp_path / "run")
    assert outside.exists() == exists
    assert not exists or outside.read_text().endswith("4\nhalf a row")
