"""The Trainer's loop in less time, against Lightning's own: the same calls, counts, logs and weights."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, ReplayData
from td3_lightning.cli.app import main
from td3_lightning.fast.training_loop import FastTrainingLoop

HOOKS = [name for name in dir(Callback) if name.startswith("on_") and "checkpoint" not in name]


class Watcher(Callback):
    """Notes every hook, and what the loops count and have logged by then."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, hook: str, trainer: Any, module: Any, *args: Any) -> None:
        """Is what every hook does."""
        loop = trainer.fit_loop.epoch_loop
        counts = (loop.batch_progress, loop.manual_optimization.optim_step_progress, loop.val_loop.batch_progress)
        stands = (loop._batches_that_stepped, trainer.global_step, trainer.is_last_batch, module._current_fx_name)
        logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
        counted = [adam._on_before_step.__name__ for adam in trainer.strategy._lightning_optimizers]
        numbers = [number for number in args if isinstance(number, int)]
        self.seen.append((hook, numbers, stands, logged, counted, copy.deepcopy(counts)))


for hook in HOOKS:
    setattr(Watcher, hook, lambda self, *args, hook=hook, **_: self.note(hook, *args))


class Logging(Callback):
    """Logs in each update, which nothing else here does."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        module.log("before", float(batch_idx), on_step=True, on_epoch=True)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        module.log_dict({"after": outputs["critic_loss"], "reward": batch.reward.mean()}, batch_size=8)


class At(Callback):
    """Does something at an update of the first epoch."""

    def __init__(self, update: int, what: Callable[[Any], None]) -> None:
        self.update, self.what = update, what

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if module.updates == self.update:
            self.what(trainer)


def ask_to_stop(trainer: Any) -> None:
    trainer.should_stop = True


def new_data(kind: type[ReplayData] = ReplayData) -> ReplayData:
    return kind("toys/Seeded-v0", steps_per_epoch=20, batch_size=8, eval_episodes=2)


def new_collector() -> Collector:
    """The first thing that draws, so that all runs draw the same."""
    L.seed_everything(3, verbose=False)
    return Collector(warmup_steps=10)


def fit(trainer: L.Trainer, direct: bool, kind: type[TD3] = TD3, **kwargs: Any) -> TD3:
    """Trains in either loop."""
    data = kwargs.pop("datamodule", None) or new_data()
    module = kind(data.obs_dim, data.action_low, data.action_high, hidden_dims=(6,))
    if direct:
        FastTrainingLoop.install(trainer)
        assert type(trainer.fit_loop.epoch_loop) is FastTrainingLoop
    trainer.fit(module, datamodule=data, **kwargs)
    return module


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches that Lightning's own loop was given."""
    taken, advance = [], _TrainingEpochLoop.advance

    def counted(self: _TrainingEpochLoop, data_fetcher: Any) -> None:
        taken.append(self.batch_idx + 1)
        advance(self, data_fetcher)

    monkeypatch.setattr(_TrainingEpochLoop, "advance", counted)
    return taken


def both(make_trainer: Any, tmp_path: Path, usual: list[int], **settings: Any) -> list[tuple[Any, ...]]:
    """What a run shows in Lightning's loop and in ours."""
    shown = []
    callbacks = settings.pop("callbacks", list)
    for direct in (False, True):
        watcher = Watcher()
        trainer = make_trainer(
            **{"max_epochs": 2, "logger": True, "log_every_n_steps": 3, **settings},
            default_root_dir=tmp_path / str(direct),
            callbacks=[new_collector(), watcher, *callbacks()],
        )
        usual.clear()
        module = fit(trainer, direct)
        weights = [weight.detach().clone() for weight in module.parameters()]
        assert module._current_fx_name is None
        shown.append((watcher.seen, weights, trainer.fit_loop.state_dict(), list(usual)))
    return shown


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"callbacks": lambda: [Logging()]},
        {"val_check_interval": 7},
        {"limit_train_batches": 11, "num_sanity_val_steps": 2, "check_val_every_n_epoch": 2},
        {"precision": "64-true", "callbacks": lambda: [Logging()]},
        {"callbacks": lambda: [At(5, ask_to_stop), Logging()], "min_epochs": 2},
        {"max_steps": 25},
        {"fast_dev_run": 4, "logger": False},
    ],
    ids=lambda settings: ", ".join(settings) or "usual",
)
def test_a_run_is_the_same(make_trainer: Any, tmp_path: Path, usual: list[int], settings: dict[str, Any]) -> None:
    (seen, weights, state, taken), direct = both(make_trainer, tmp_path, usual, **settings)
    assert {"on_train_batch_start", "on_train_batch_end"} < {hook for hook, *_ in seen}
    assert len(seen) == len(direct[0])
    for one, other in zip(seen, direct[0], strict=True):
        assert one == other
    assert all(torch.equal(one, other) for one, other in zip(weights, direct[1], strict=True))
    assert state == direct[2]
    assert taken
    assert not direct[3]


class AfterEvaluation(At):
    """Does it at the end of the evaluation after an update."""

    on_validation_end = At.on_train_batch_end
    on_train_batch_end = Callback.on_train_batch_end


@pytest.mark.parametrize(
    ("saver", "update", "first"),
    [(At, 13, 13), (At, 20, 0), (AfterEvaluation, 10, 10), (AfterEvaluation, 20, 20)],
    ids=["in an epoch", "at its last update", "after an evaluation in it", "after its last"],
)
def test_a_resumed_run_is_the_same(
    make_trainer: Any, tmp_path: Path, usual: list[int], saver: type[At], update: int, first: int
) -> None:
    shown = []
    for direct in (False, True):
        path = tmp_path / f"{direct}.ckpt"
        for checkpoint in (None, path):
            watcher, keep = Watcher(), saver(update, lambda trainer, path=path: trainer.save_checkpoint(path))
            callbacks = [new_collector(), watcher, keep]
            trainer = make_trainer(max_epochs=2, callbacks=callbacks, log_every_n_steps=3, val_check_interval=10)
            usual.clear()
            module = fit(trainer, direct, ckpt_path=checkpoint)
            weights = [weight.detach().clone() for weight in module.parameters()]
        shown.append((watcher.seen, weights, trainer.fit_loop.state_dict()))
        assert module.updates == 40
    assert shown[0][0] == shown[1][0]
    assert all(torch.equal(one, other) for one, other in zip(shown[0][1], shown[1][1], strict=True))
    assert shown[0][2] == shown[1][2]
    assert usual == [first], "the first batch is Lightning's"


class OwnStrategy(SingleDeviceStrategy):
    """Might do something else."""


@pytest.mark.parametrize(
    "settings",
    [
        {"profiler": SimpleProfiler()},
        {"strategy": OwnStrategy()},
        {"check_val_every_n_epoch": None, "val_check_interval": 7},
        {"val_check_interval": {"minutes": 1}},
    ],
    ids=["profiler", "strategy", "over epochs", "by the clock"],
)
def test_what_is_unusual_is_left_to_lightning(make_trainer: Any, usual: list[int], settings: dict[str, Any]) -> None:
    trainer = make_trainer(callbacks=[new_collector()], **settings)
    assert fit(trainer, True).updates == 20
    assert len(usual) == 20


def test_another_version_is_left_alone(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    monkeypatch.setattr(L, "__version__", "2.7.0")
    FastTrainingLoop.install(trainer)
    assert type(trainer.fit_loop.epoch_loop) is _TrainingEpochLoop


def test_hooks_of_module_data_and_late_callbacks_are_called(make_trainer: Any, usual: list[int]) -> None:
    """A callback that is added within an epoch is called from the next epoch on."""
    heard: list[str] = []

    class Told(TD3):
        def on_train_batch_end(self, *_: Any) -> None:
            heard.append("module")

    class Moved(TD3):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            heard.append("moved")
            return batch

    class Doubled(ReplayData):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            heard.append("data")
            return batch

    late = LambdaCallback(on_train_batch_start=lambda *_: heard.append("late"))
    add = At(15, lambda trainer: trainer.callbacks.append(late))
    fit(make_trainer(callbacks=[new_collector(), add], max_epochs=2), True, Told, datamodule=new_data(Doubled))
    assert {name: heard.count(name) for name in heard} == {"module": 40, "data": 40 + 2 * 2, "late": 20}
    fit(make_trainer(callbacks=[new_collector()]), True, Moved)
    assert heard.count("moved") == 20 + 2
    assert not usual


def test_the_command_line_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usual: list[int]) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--data.env_id=toys/Seeded-v0", "--data.steps_per_epoch=10", "--data.batch_size=4"]
    trainer = ["--trainer.max_epochs=2", "--trainer.accelerator=cpu"]
    words = ["--collector.warmup_steps=10", "--data.eval_episodes=1", "--model.hidden_dims=[8]"]
    assert main(["fit", *data, *trainer, *words]) == 0
    assert not usual
    assert main(["fit", *data, *trainer, *words, "--trainer.profiler=simple"]) == 0
    assert len(usual) == 20
