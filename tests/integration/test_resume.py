"""A run that is stopped at any point and resumed in another process is bit-identical to an uninterrupted run.

The file is also the program of that process, which forks for each request. `resume` resumes from all checkpoints that
the test has recorded on its way, and reports differences. `fit` trains until a signal.
"""

import copy
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import conftest  # noqa: F401  # no screen, one thread
import recorded
from processes import program
from run_comparison import Stops, differences, events, rows, values
from td3_lightning import TD3, TD7, Collector, Dataset, Linear, ReplayData
from td3_lightning.checkpointing.interruption import StopOnSignal
from td3_lightning.checkpointing.io import AtomicCheckpointIO
from td3_lightning.checkpointing.last import LastCheckpoint
from td3_lightning.checkpointing.log_rollback import LogRollback
from td3_lightning.envs.car_racing import Pedals
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.envs.wrappers import ActionRepeat
from td3_lightning.errors import ExitOnSignal
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.schedules import as_schedule
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from td3_lightning.training import upkeep
from td3_lightning.training.evaluation import SaveEvaluations, StopWhenSolved
from td3_lightning.training.policy_checkpoint import PolicyCheckpoint
from td3_lightning.training.weight_averaging import AveragedWeights

EPOCH, EPOCHS = 12, 3  # updates in an epoch, epochs in a run
PENDULUM: dict[str, Any] = {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 9}}
LANDER: dict[str, Any] = {"env_id": "LunarLanderContinuous-v3", "env_kwargs": {"max_episode_steps": 90}}
CAR: dict[str, Any] = {
    "env_id": "td3_lightning/CarRacing-v0",
    "env_kwargs": {"max_episode_steps": 150},
    "train_kwargs": {"stall_limit": 40},
    "wrappers": [Pedals, lambda env: ActionRepeat(env, 4)],
}
DATA: dict[str, dict[str, Any]] = {
    "Pendulum": PENDULUM,
    "Pendulum, n-step": {**PENDULUM, "n_step": 3, "capacity": 100},
    "Lander, several": {**LANDER, "num_envs": 3, "n_step": 5},
    "car": {**CAR, "train_kwargs": {"track_seed": 123, "stall_limit": 40, "random_starts": 0.5}, "n_step": 3},
    "Pendulum, by episodes": {**PENDULUM, "n_step": 2, "updates_per_step": Linear(0.5, 1, 60)},
    "Pendulum, averaged doubles": PENDULUM,
    "TD7, averaged": PENDULUM,
    "TD7, complete": {**PENDULUM, "n_step": 2, "capacity": 100, "priority_alpha": 0.4},
    "prioritized": {**PENDULUM, "num_envs": 2, "n_step": 3, "capacity": 100, "priority_alpha": 0.4},
    "schedules": {**PENDULUM, "n_step": 2, "capacity": 100, "gamma": Linear(0.9, 0.99, 50)},
    "Pendulum, policy checkpoints": PENDULUM,
    "Lander, policy checkpoints": {
        **LANDER,
        "env_kwargs": {"max_episode_steps": 7},
        "num_envs": 3,
        "updates_per_step": Linear(0.25, 0.5, 100),
    },
    "offline": {**PENDULUM, "n_step": 2, "dataset": Dataset("recorded-v0", offline=True)},
    "dataset, share": {**PENDULUM, "n_step": 2, "capacity": 100, "dataset": Dataset("recorded-v0", share=0.25)},
    "short": {**PENDULUM, "num_envs": 2, "n_step": 4, "capacity": 40, "updates_per_step": 0.5},
    "overlapped": {**PENDULUM, "num_envs": 2, "n_step": 2},  # a step is in progress during two updates
}
SIMULATORS = {"mujoco": "Walker2d-v5", "pybullet": "pybullet_envs_gymnasium:Walker2DBulletEnv-v0"}
for package, env_id in SIMULATORS.items():
    if find_spec(package):
        DATA[package] = {"env_id": env_id, "num_envs": 2}
COLLECTORS: dict[str, dict[str, Any]] = {
    "Pendulum, by episodes": {"warmup_steps": 22, "random_steps": 40, "collect": "episode"},
}
DEPLOYING: dict[str, list[Callback]] = {  # other weights than those that are trained
    "TD7, complete": [PolicyCheckpoint(1, 2, switch_after=12)],
    "TD7, averaged": [AveragedWeights(decay=0.9)],
    "Pendulum, averaged doubles": [AveragedWeights(decay=0.9)],
    "Pendulum, policy checkpoints": [PolicyCheckpoint(1, 2, switch_after=12)],
    "Lander, policy checkpoints": [PolicyCheckpoint(5, 2, switch_after=12)],
}
NORMALIZED = {"prioritized", "short", "overlapped", "TD7, complete", "TD7, averaged", "Lander, policy checkpoints"}
MOMENTS = ["006 update", "012 evaluation 0", "012 epoch end", "024 evaluation 1", "035 update", "036 evaluation end"]
END = "036 evaluation end"  # a run that resumes here may have no row left to log


class Run:
    """Train one case in a folder for a few epochs.

    Args:
        case: A key of DATA.
        folder: Folder of the logs and checkpoints.
        seed: Seed of everything, which must not affect a resumed run.
        callbacks: Additional callbacks, before StopOnSignal.
    """

    def __init__(self, case: str, folder: Path, seed: int = 1, callbacks: tuple[Callback, ...] = ()) -> None:
        L.seed_everything(seed, verbose=False)
        settings = {"batch_size": 4, "capacity": 2_000, "eval_episodes": 2, **DATA[case]}
        first_ratio = as_schedule("updates_per_step", settings.setdefault("updates_per_step", 1.0))(0)
        if "dataset" in settings:
            recorded.write(folder.parent / "datasets")
        self.data = ReplayData(**settings, steps_per_epoch=round(EPOCH / first_ratio))
        self.data.is_overlapped = case == "overlapped"  # also without workers, which are slow to start
        loss: Any = "huber" if case == "prioritized" else "mse"
        sizes = self.data.obs_dim, self.data.action_low, self.data.action_high
        common: dict[str, Any] = {"hidden_dims": (8,), "policy_freq": 3, "normalize_observations": case in NORMALIZED}
        if case == "schedules":
            common |= {"actor_lr": Linear(1e-3, 1e-4, 50), "critic_lr": Linear(1e-3, 1e-4, 50)}
        if case.startswith("TD7"):  # the targets change between, in and at the end of epochs
            self.module: TD3 = TD7(*sizes, zs_dim=4, target_update_freq=4, **common)
        else:
            weight = 0.4 if self.data.offline else None
            self.module = TD3(*sizes, critic_loss=loss, bc_weight=weight, **common)
        self.folder = folder
        self.last = folder / "last.ckpt"
        self.trainer = L.Trainer(
            accelerator="cpu",
            callbacks=[
                *copy.deepcopy(deploying := DEPLOYING.get(case, [])),
                Collector(**COLLECTORS.get(case, {"warmup_steps": 150})),
                *([] if deploying or self.data.offline else [StopWhenSolved(threshold=1e9, window=3)]),  # never reached
                SaveEvaluations(),
                *callbacks,
                StopOnSignal(),
                LogRollback(),
                ModelCheckpoint(folder, "best", monitor="eval/return_mean", mode="max"),
                LastCheckpoint(folder),
            ],
            default_root_dir=folder,
            enable_model_summary=False,
            enable_progress_bar=False,
            log_every_n_steps=5,
            logger=RunLogger(str(folder), name="", version=""),
            max_epochs=EPOCHS,
            num_sanity_val_steps=0,
            plugins=[AtomicCheckpointIO()],
            precision="64-true" if "doubles" in case else "32-true",
        )

    def fit(self, ckpt_path: Path | None = None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upkeep, "RESET_INTERVAL", 5)  # several resets of the largest priority
            self.trainer.fit(self.module, datamodule=self.data, ckpt_path=ckpt_path)


class Snapshots(Callback):
    """Save a checkpoint at two of MOMENTS, the places where a run may stop or save. The cases share them."""

    def __init__(self, case: str, folder: Path) -> None:
        first = list(DATA).index(case) % 3
        self.folder, self.moments = folder, MOMENTS[first::3]

    def _save(self, trainer: L.Trainer, moment: str) -> None:
        name = f"{trainer.lightning_module.updates:03d} {moment}"
        if name in self.moments:
            trainer.save_checkpoint(self.folder / f"{name}.ckpt")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._save(trainer, "update")

    def on_validation_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._save(trainer, f"evaluation {batch_idx}")

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._save(trainer, "evaluation end")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self._save(trainer, "epoch end")


def record(root: Path) -> None:
    """Train every case to its end."""
    for case in DATA:
        Run(case, root / case, callbacks=(Snapshots(case, root / case / "snapshots"),)).fit()


def resume(folder: str) -> None:
    """Resume from every snapshot, and write the differences to report.json."""
    root = Path(folder)
    report: dict[str, list[str]] = {}
    for case in DATA:
        whole, end = rows(root / case), values(root / case / "last.ckpt")
        for snapshot in sorted((root / case / "snapshots").glob("*.ckpt")):
            again = Run(case, root / case / f"from {snapshot.stem}", seed=2)
            again.fit(snapshot)
            found = differences(end, again.last)
            left = whole[read_checkpoint(snapshot)["callbacks"]["LogRollback"]["position"]["rows"] :]
            logged = rows(again.folder) if left or snapshot.stem != END else []
            report[f"{case}, {snapshot.stem}"] = found + ["metrics.csv"] * (logged != left)
    (root / "report.json").write_text(json.dumps(report))


def fit(folder: str, ckpt_path: str | None, number: int, updates: int) -> None:
    """Train or resume until a signal."""
    run = Run("short", Path(folder), callbacks=(Stops("on_train_batch_start", updates, number),))
    run.fit(Path(ckpt_path) if ckpt_path else None)


def serve() -> None:
    """Run each request on standard input in a fork, and print its exit status."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        process = os.fork()
        if process == 0:
            {"resume": resume, "fit": fit}[name](*arguments)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[..., int]]:
    """Return a function that makes a request of another process, and returns the exit status."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program(__file__), env=environment, **pipes) as server:

        def request(*words: str | int | None) -> int:
            print(json.dumps(words), file=server.stdin, flush=True)
            return int(server.stdout.readline())  # type: ignore[union-attr]

        yield request
        server.stdin.close()  # type: ignore[union-attr]


@pytest.mark.timeout(900)  # 15 s on a free core
def test_resume_in_another_process_is_bit_exact(tmp_path: Path, ask: Callable[..., int]) -> None:
    record(tmp_path)
    assert ask("resume", str(tmp_path)) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report) == len(DATA) * 2
    assert {name: found for name, found in report.items() if found} == {}


STOPS = [
    *(("on_train_batch_start", at) for at in (0, 1, 2, 6, 10, 11)),  # the last one is at an epoch's last update
    *(("on_fit_start", 12), ("on_validation_batch_end", 12), ("on_train_start", 12)),
    *(("on_train_epoch_end", 12), ("on_fit_start", 13), ("on_train_batch_start", 13)),
    *(("on_train_batch_start", at) for at in (17, 22, 23)),
    *(("on_validation_end", 24), ("on_train_batch_start", 25), ("on_train_batch_start", 35)),
    *(("on_train_start", 36), ("on_validation_batch_end", 36)),
]


def test_resume_after_a_chain_of_stops_is_bit_exact(tmp_path: Path) -> None:
    case = "prioritized"
    Run(case, tmp_path / "whole").fit()
    for count, stop in enumerate(STOPS):
        run = Run(case, tmp_path / "chain", seed=count + 1, callbacks=(Stops(*stop),))
        with pytest.raises(ExitOnSignal):
            run.fit(run.last if count else None)
    run = Run(case, tmp_path / "chain")
    run.fit(run.last)
    assert differences(tmp_path / "whole" / "last.ckpt", run.last) == []
    assert rows(run.folder) == rows(tmp_path / "whole")


@pytest.mark.parametrize(("case", "mode", "at"), [("short", "async", 17), ("overlapped", "overlapped", 7)])
def test_resumed_run_with_workers_equals_one_process(
    case: str, mode: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(case, tmp_path / "whole").fit()
    monkeypatch.setitem(DATA, case, {**DATA[case], "vector_env": mode})
    run = Run(case, tmp_path / "workers", callbacks=(Stops("on_train_batch_start", at),))
    with pytest.raises(ExitOnSignal):
        run.fit()
    Run(case, tmp_path / "workers", seed=5).fit(run.last)
    found = differences(tmp_path / "whole" / "last.ckpt", run.last)
    assert [name for name in found if "/generators/" not in name] == []  # those of other processes
    assert rows(run.folder) == rows(tmp_path / "whole")


class StopsInStep:
    """Send a signal to this process in a step of the training environments, and count the steps.

    Args:
        step: The method of `TrainingVectorEnv` that begins a step.
        at: Number of the step in which the signal is sent.
    """

    def __init__(self, step: Any, at: int) -> None:
        self.step, self.at, self.taken = step, at, 0

    def __call__(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == self.at:
            signal.raise_signal(signal.SIGTERM)
        return self.step(action)


@pytest.mark.parametrize("case", ["Pendulum, policy checkpoints", "Lander, policy checkpoints"])
def test_resume_within_assessments_is_bit_exact(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLLECTORS, case, {"warmup_steps": 30})
    Run(case, tmp_path / "whole").fit()
    begin, last, states = TrainingVectorEnv.__init__, tmp_path / "chain" / "last.ckpt", []

    def make(envs: Any, *arguments: Any) -> None:
        begin(envs, *arguments)
        envs.begin = StopsInStep(envs.begin, at=4)

    monkeypatch.setattr(TrainingVectorEnv, "__init__", make)
    while True:
        run = Run(case, tmp_path / "chain", seed=len(states) + 1)
        try:
            run.fit(last if states else None)
            break
        except ExitOnSignal:
            states.append(read_checkpoint(last)["callbacks"]["PolicyCheckpoint"])
    running = [state["assessment"] for state in states if state["assessment"] is not None]
    assert {bool(state["finished"]) for state in running} == {False, True}
    assert {state["is_late"] for state in states} == {False, True}
    assert differences(tmp_path / "whole" / "last.ckpt", last) == []
    assert rows(tmp_path / "chain") == rows(tmp_path / "whole")


@pytest.mark.parametrize("updates", [13, 20])
def test_resume_is_exact_with_evaluations_by_total_updates(updates: int, tmp_path: Path) -> None:
    runs = {}
    for name, callbacks in (("whole", ()), ("stopped", (Stops("on_train_batch_start", updates),)), ("stopped ", ())):
        runs[name] = Run("Pendulum", tmp_path / name.strip(), callbacks=callbacks)
        trainer: Any = runs[name].trainer
        trainer.check_val_every_n_epoch, trainer.val_check_interval = None, 7
        with pytest.raises(ExitOnSignal) if callbacks else nullcontext():
            runs[name].fit(runs[name].last if name == "stopped " else None)
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    assert len([row for row in rows(tmp_path / "whole") if "eval/return_mean" in row]) == 5


SIGNALS = [(signal.SIGINT, 4, 130), (signal.SIGTERM, EPOCH + 7, 143), (signal.SIGUSR1, 2 * EPOCH + 3, 75), (0, -1, 0)]


def test_resume_after_signals_is_bit_exact(tmp_path: Path, ask: Callable[..., int]) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert ask("fit", str(whole), None, 0, -1) == 0
    for number, updates, status in SIGNALS:
        last = stopped / "last.ckpt"
        assert ask("fit", str(stopped), str(last) if last.exists() else None, number, updates) == status
    assert rows(whole)
    assert events(whole)
    assert rows(stopped) == rows(whole)
    assert events(stopped) == events(whole)
    assert differences(whole / "last.ckpt", stopped / "last.ckpt") == []


if __name__ == "__main__":
    gc.freeze()  # a fork would search the imports for seconds at its end
    os.fsync = lambda descriptor: None  # a killed process loses nothing that it wrote
    serve()
