"""Check that environments close exactly once and within their time limit."""

import contextlib
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from td3_lightning import ReplayData, UsageError
from td3_lightning.envs.checked import CheckedEnv
from td3_lightning.envs.lifetime import Lifetime, StepTimeout, close_env
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.errors import EnvError, ExitOnSignal
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from toys import Counter

# Time limit


class Swallowing(Counter):
    """Catch the alarm in a step, in the way that the class attribute selects."""

    how = "returns"

    def step(self, action: Any) -> Any:
        getattr(self, self.how)()
        return super().step(0.0)

    def returns(self) -> None:
        with contextlib.suppress(Exception):
            time.sleep(30)

    def returns_from_base(self) -> None:
        with contextlib.suppress(BaseException):
            time.sleep(30)

    def raises_another(self) -> None:
        try:
            time.sleep(30)
        except Exception as error:
            raise ValueError("no connection") from error

    def tries_again(self) -> None:
        for _ in range(200):
            with contextlib.suppress(Exception):
                time.sleep(1)

    def tries_for_ever(self) -> None:
        while True:
            try:  # noqa: SIM105  # that is another loop
                time.sleep(1)
            except BaseException:
                pass


@pytest.fixture
def _alarm() -> Any:
    """Set the default handler of SIGALRM, as in a new process."""
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(60, method="thread")
@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("how", ["returns", "returns_from_base", "raises_another", "tries_again", "tries_for_ever"])
def test_caught_alarm_still_times_out(how: str) -> None:
    env = CheckedEnv(StepTimeout(Swallowing(), 0.2))
    env.reset(seed=5)
    env.unwrapped.how = how  # type: ignore[attr-defined]
    began = time.monotonic()
    with pytest.raises(EnvError, match=r"^Swallowing did not return within 0.2 seconds at step 1 of the episode with"):
        env.step(0.0)
    assert 0.2 <= time.monotonic() - began < 20
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.timeout(60, method="thread")
@pytest.mark.usefixtures("_alarm")
def test_step_after_timeout_has_full_time_limit() -> None:
    env = CheckedEnv(StepTimeout(Swallowing(), 0.2))
    env.reset(seed=5)
    with pytest.raises(EnvError, match="did not return within"):
        env.step(0.0)
    env.unwrapped.how = "_obs"  # type: ignore[attr-defined]
    env.step(0.0)


# Closing


class Closing(Counter):
    """Count the calls of `close`, which may fail."""

    closed = 0
    error: BaseException | None = None

    def close(self) -> None:
        type(self).closed += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> type[Closing]:
    monkeypatch.setattr(Closing, "closed", 0)
    return Closing


@pytest.mark.parametrize("end", ["close", "close twice", "garbage"])
def test_environment_is_closed_once(end: str, closing: type[Closing]) -> None:
    env = Lifetime(closing())
    env.reset(seed=1)
    for _ in range({"close": 1, "close twice": 2, "garbage": 0}[end]):
        env.close()
    del env
    gc.collect()
    assert closing.closed == 1


def test_reused_environment_is_closed_again(closing: type[Closing]) -> None:
    env = Lifetime(closing())
    for expected in (1, 2):
        env.reset(seed=1)
        env.close()
        assert closing.closed == expected


@pytest.mark.parametrize(
    "error", [OSError("port\nis gone"), SystemExit(3), GeneratorExit(), EnvError("Ours.")], ids=repr
)
def test_failed_close_logs_warning(
    error: BaseException, closing: type[Closing], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(closing, "error", error)
    ours = isinstance(error, EnvError)
    with caplog.at_level(logging.WARNING), pytest.raises(EnvError) if ours else contextlib.nullcontext():
        close_env(closing(), "Closing")
    said = [record.getMessage() for record in caplog.records]
    kind = type(error).__name__
    assert ours or re.fullmatch(rf"Closing raised {kind}.* \(.*, line \d+\) in close\(\)\. .*", said[0])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ExitOnSignal(130)], ids=repr)
def test_ctrl_c_during_close_is_raised(
    error: BaseException, closing: type[Closing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "error", error)
    with pytest.raises(type(error)):
        close_env(closing(), "Closing")


@pytest.mark.timeout(60, method="thread")
@pytest.mark.usefixtures("_alarm")
def test_hanging_close_logs_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "close", lambda self: time.sleep(50))
    env = StepTimeout(Closing(), 0.2)
    with caplog.at_level(logging.WARNING):
        env.close()
    assert "Closing raised StepTimeoutError: no answer within 0.2 seconds" in caplog.text


def test_failed_constructor_closes_all_environments(closing: type[Closing]) -> None:
    made: list[Any] = []

    def make() -> Any:
        if len(made) == 2:
            raise ValueError("The third one.")
        made.append(Lifetime(closing()))
        return made[-1]

    with pytest.raises(ValueError, match="The third one"):
        TrainingVectorEnv(make, 4)
    assert closing.closed == 2


def fails(env: Any) -> Any:
    raise OSError


@pytest.mark.parametrize(
    "settings",
    [{"wrappers": [fails]}, {"batch_size": 0}, {"pixels": "Pixels"}, {"env_kwargs": {"low": (1.0,), "high": (1.0,)}}],
    ids=lambda settings: next(iter(settings)),
)
def test_rejected_environment_is_closed(settings: dict[str, Any], closing: type[Closing]) -> None:
    from td3_lightning.replay.pixels import Pixels

    settings = {**settings, **({"pixels": Pixels()} if "pixels" in settings else {})}
    with pytest.raises((UsageError, EnvError)):
        ReplayData(closing, **settings)
    gc.collect()
    assert closing.closed == 1


# In a program


PROGRAM = """
import gymnasium, os, signal, subprocess, sys, time
from pathlib import Path
from toys import Counter

MADE = []

class Simulated(Counter):
    '''Runs a child process, and comes to the end that a file names.'''

    def __init__(self):
        super().__init__()
        self.how = os.environ["END"]
        MADE.append(self)
        self.child = subprocess.Popen(["sleep", "1000"])
        with Path("pids").open("a") as file:
            file.write(f"{self.child.pid}\\n")
        if self.how == "constructor" and len(MADE) == 3:
            self.close()
            raise ValueError("port is busy")

    def step(self, action):
        if self.episode == 6 and len(MADE) == 3 and self is MADE[1]:
            if self.how == "exception":
                raise OSError("gone")
            if self.how == "exit":
                sys.exit(0)
            if self.how == "interrupt":
                raise KeyboardInterrupt
            if self.how in ("SIGTERM", "SIGINT"):
                signal.raise_signal(getattr(signal, self.how))
        return super().step(action)

    def close(self):
        self.child.kill()
        self.child.wait()
        if self.how == "close":
            raise OSError("no answer")
        if self.how == "close exits":
            sys.exit(7)

gymnasium.register("Simulated-v0", Simulated, disable_env_checker=True)
"""
FAULT = "Environment 0 of Simulated-v0 raised {} (*simulated.py, line *) at step 1 of the episode with seed "


def run(folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    (folder / "simulated.py").write_text(PROGRAM)
    words = [
        "--data.env_id=simulated:Simulated-v0",
        "--data.num_envs=2",
        "--data.batch_size=4",
        "--model.hidden_dims=[8]",
    ]
    words += ["--data.steps_per_epoch=100", "--collector.warmup_steps=20", "--trainer.enable_progress_bar=false"]
    words += ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--data.eval_episodes=1"]
    return subprocess.run(
        [sys.executable, "-m", "td3_lightning", "fit", *words],
        env={**os.environ, "END": end, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize(
    ("end", "code", "said", "env_steps"),
    [
        ("finish", 0, "", 120),
        ("exception", 1, FAULT.format("OSError: gone"), 60),
        ("exit", 1, FAULT.format("SystemExit: 0"), 60),
        ("interrupt", 1, FAULT.format("KeyboardInterrupt"), 60),
        ("SIGTERM", 143, "Stopped by SIGTERM", 62),
        ("SIGINT", 130, "Stopped by SIGINT", 62),
        ("constructor", 1, "Simulated-v0 raised ValueError: port is busy (*simulated.py, line *) in its constr", None),
        ("close", 0, "Simulated-v0 raised OSError: no answer (*simulated.py, line *) in close().", 120),
        ("close exits", 0, "Simulated-v0 raised SystemExit: 7 (*simulated.py, line *) in close().", 120),
    ],
)
def test_every_program_exit_saves_run_and_leaves_no_process(
    end: str, code: int, said: str, env_steps: int | None, tmp_path: Path
) -> None:
    ended = run(tmp_path, end)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert re.search(re.escape(said).replace(r"\*", ".*"), ended.stdout + ended.stderr), ended.stderr
    found = list(tmp_path.rglob("last.ckpt"))
    assert [read_checkpoint(path)["clocks"]["env_steps"] for path in found] == ([env_steps] if env_steps else [])
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_outside_training_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    assert run(tmp_path, "finish").returncode == 0
    (tmp_path / "pids").unlink()
    program = (tmp_path / "simulated.py").read_text()
    (tmp_path / "simulated.py").write_text(program.replace("self.how in (", "self.how in (self.how,").replace(
        "if self.episode == 6 and len(MADE) == 3 and self is MADE[1]:", "if self.steps == 2:"
    ).replace("getattr(signal, self.how)", f"signal.{number.name}"))  # fmt: skip
    (last,) = tmp_path.rglob("last.ckpt")
    words = ["--data.env_id=simulated:Simulated-v0", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    ended = subprocess.run(
        [sys.executable, "-m", "td3_lightning", "test", f"--ckpt_path={last}", *words],
        env={**os.environ, "END": "signal", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 128 + number, ended.stderr
    assert "Traceback" not in ended.stderr
    (pid,) = (tmp_path / "pids").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
