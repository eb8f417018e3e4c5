"""Check the command `sweep`: its messages, and real runs that are killed."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

import td3_lightning
from processes import is_running, wait_for
from td3_lightning.cli.app import main
from td3_lightning.reporting.metrics_csv import read_metrics

TINY = """
data: {env_id: Pendulum-v1, capacity: 1000, batch_size: 8, steps_per_epoch: 100, eval_episodes: 1}
collector: {warmup_steps: 50}
model: {class_path: TD3, init_args: {hidden_dims: [8]}}
trainer: {max_epochs: 14, accelerator: cpu}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("space.yaml").write_text("model.actor_lr: {low: 1e-5, high: 1e-3, log: true}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--space space.yaml", "sweep requires --config, got none. Use --config pendulum.yaml, for example."),
        ("--config tiny.yaml --space space.yaml --seeds 1", "sweep requires --space or --seeds, got both. Use"),
        ("--config tiny.yaml --seeds 1 --seed_everything 3", "--seed_everything must not be set for sweep, which"),
        ("--config tiny.yaml --seeds 1 --name ../../x", "name must be a folder in lightning_logs, got '../../x'. Use"),
        ("--config tiny.yaml --seeds 1 --ckpt_path x", "--ckpt_path must not be set for sweep, which sets it for"),
        ("--config tiny.yaml --space none.yaml", 'There is no search space "none.yaml" in '),
        ("--config tiny.yaml --space space.yaml --model.actor_lr 1", "model.actor_lr must be either in the space or a"),
        ("--config tiny.yaml --space space.yaml --storage a://b", "storage must be the URL of a database that can be"),
        ("--config tiny.yaml --space space.yaml --storage tiny.yaml", "storage must be the URL of a database "),
    ],
)
def test_invalid_words_are_one_sentence(
    words: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert main(["sweep", *shlex.split(words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("model.actr_lr: {low: 1, high: 2}", 'There is no setting "model.actr_lr"; did you mean model.actor_lr?'),
        ("learning_rate: {low: 1, high: 2}", 'There is no setting "learning_rate"'),
        ("model.tau: {low: 0.1, high: 1.5}", "tau must be in (0, 1], got 1.5. The paper uses 0.005."),
        ("model.hidden_dims: {choices: [[8], [a]]}", "model.hidden_dims must be an integer, got a."),
    ],
)
def test_space_outside_of_the_settings_is_refused(
    entry: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("space.yaml").write_text(entry)
    assert main(["sweep", "--config", "tiny.yaml", "--space", "space.yaml"]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (folder / "lightning_logs").exists()


def test_settings_check_starts_no_added_logger(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The storage is refused after the settings of all runs have been checked."""
    logger = "{class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: copies}}"
    words = ["--config", "tiny.yaml", "--space", "space.yaml", "--storage", "a://b"]
    assert main(["sweep", *words, "--trainer.logger", logger]) == 2
    assert "storage must be the URL of a database" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["space.yaml", "tiny.yaml"]


def test_published_space_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    """The last word is wrong on purpose: it is read after the space has been checked."""
    words = ["--config", "tiny.yaml", "--space", "td3.yaml", "--storage", "no/database"]
    assert main(["sweep", *words]) == 2
    assert "storage must be" in capsys.readouterr().err


@pytest.mark.timeout(900)  # it starts six processes that import torch
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the test finds the run by /proc")
def test_killed_run_and_killed_sweep_continue(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "--config", "tiny.yaml", "--space", "space.yaml", "--trials", "1"]
    run = folder / "lightning_logs" / "tiny_sweep" / "trial_0"

    def evaluations() -> list[float]:
        path = run / "version_0" / "metrics.csv"
        metric = "eval/return_mean"
        return read_metrics(path, [metric])[metric][:, 0].tolist() if path.exists() else []

    def fit() -> int:
        """Return the PID of the run."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_text().split("\0")
            except OSError:  # the process has ended
                continue
            if "fit" in line and "tiny_sweep/trial_0" in line and os.readlink(path.with_name("cwd")) == str(folder):
                return int(path.parent.name)
        return 0

    env = {**os.environ, "PYTHONPATH": str(Path(td3_lightning.__file__).parents[1])}
    sweep = subprocess.Popen([sys.executable, "-m", "td3_lightning", *words], env=env, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(evaluations()) >= 2)
        os.kill(fit(), signal.SIGKILL)
        lost = len(evaluations())
        wait_for(lambda: len(evaluations()) > lost + 1)
    finally:
        sweep.kill()
        sweep.wait()
    orphan = fit()
    wait_for(lambda: not is_running(orphan))
    log = (run / "log.txt").read_text()
    assert "Stopped by SIGTERM" in log
    assert main(words) == 0
    log = (run / "log.txt").read_text()
    printed = [log.count(f" {step:,.0f} env_steps return") for step in evaluations()]
    assert min(printed) == 1
    assert sum(printed) <= len(printed) + 2  # each kill repeats at most the evaluation that was not yet saved
    assert evaluations() == [100.0 * number + 50 for number in range(1, 15)]  # none is missing or repeated
    database = f"sqlite:///{run.parent / 'study.db'}"
    (study,) = optuna.load_study(study_name=None, storage=database).get_trials()
    assert study.state.name == "COMPLETE"
    assert sorted(study.intermediate_values) == [int(step) for step in evaluations()]
