"""Check that environments in several processes give the results of one process, and how they fail."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from td3_lightning import UsageError
from td3_lightning.cli.app import main
from td3_lightning.envs.make import make_wrapped
from td3_lightning.envs.vector_env import EnvList, Step, TrainingVectorEnv
from td3_lightning.envs.workers import Workers
from td3_lightning.errors import EnvError
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from tests.envs.test_vector_env import through_a_file
from toys import Obedient, Seeded


def new_envs(kind: Any = Seeded, num_envs: int = 3, workers: bool = True) -> TrainingVectorEnv:
    make = partial(make_wrapped, kind, {}, ())
    return TrainingVectorEnv(Workers(make, range(num_envs), "Toy") if workers else EnvList(make, num_envs))


def pids(envs: Any) -> list[int]:
    return [process.pid for process in envs.vector.processes]


def assert_no_process(found: list[int]) -> None:
    for pid in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def assert_same(one: Step, other: Step) -> None:
    for name in ("obs", "action", "last_obs"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one[2:5] == other[2:5]
    assert one.reports == other.reports


def test_workers_match_one_process_bit_for_bit() -> None:
    """States are exchanged in both directions in the middle of episodes."""
    one, other = new_envs(workers=False), new_envs()
    found, rng, ends = pids(other), np.random.default_rng(3), 0
    for envs in (one, other):
        envs.reset(7)
    for count in range(40):
        np.testing.assert_array_equal(one.obs, other.obs)
        assert one.episode_steps() == other.episode_steps()
        action = rng.uniform(-0.5, 1.5, (3, 1)).astype(np.float32)
        steps = [envs.step(action) for envs in (one, other)]
        assert_same(*steps)
        ends += len(steps[0].reports)
        if count in (11, 25):
            states = [through_a_file(envs.state_dict()) for envs in (one, other)]
            assert one.load_state_dict(states[1]) == other.load_state_dict(states[0]) == []
    assert ends > 10
    for envs in (one, other):
        envs.close()
    assert_no_process(found)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_worker_ignores_signals_and_does_not_load_pytorch() -> None:
    """Ctrl-C in a terminal reaches the workers, too. PyTorch would take 2 seconds and 130 MB in each."""
    envs = new_envs("LunarLanderContinuous-v3", 1)
    envs.reset()
    for pid in pids(envs):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(pid, number)
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
    assert envs.step(np.zeros((1, 2), np.float32)).obs.shape == (1, 8)
    envs.close()


def test_step_that_has_begun_is_restored_bit_for_bit() -> None:
    """The step is exchanged between workers and one process, with and without the end of an episode."""
    workers, other, expected = new_envs(), new_envs(workers=False), new_envs(workers=False)
    for envs in (workers, other, expected):
        envs.reset(7)
    rng, ends = np.random.default_rng(3), 0
    for _ in range(12):
        action = rng.uniform(-0.5, 1.5, (3, 1)).astype(np.float32)
        workers.begin(action)
        assert other.load_state_dict(through_a_file(workers.state_dict())) == []
        step = expected.step(action)
        ends += len(step.reports)
        for envs in (workers, other):
            assert envs.is_stepping
            assert_same(envs.finish(), step)
            np.testing.assert_array_equal(envs.obs, expected.obs)
            assert "step" not in envs.state_dict()
    assert ends > 3
    workers.close()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (1, r"Environment 1 of Obedient raised OSError: gone \(.*toys.py, line \d+\) at step 2 of the episode"),
        (2, "An environment of Toy did not return within 3 seconds. This step is not stored. Correct"),
        (4, "Environment 1 of Toy is lost, because its process exited with status 7. This step is not stored."),
        (5, "Environment 1 of Toy is lost, because its process was killed by SIGKILL. This step is not stored."),
    ],
)
def test_failing_worker_is_one_sentence(
    order: int, said: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(Workers.step_wait, "__defaults__", (3.0,))
    monkeypatch.setattr("td3_lightning.envs.workers.LIMIT", 3.0)
    envs = new_envs(Obedient, 2)
    found = pids(envs)
    envs.reset()
    envs.step(np.zeros((2, 1), np.float32))
    envs.begin(np.array([[0], [order]], np.float32))
    with pytest.raises(EnvError, match=f"^{said}"):
        envs.state_dict()  # finishes the step
    assert envs.state_dict() == {"episodes": []}  # so that the run can be saved
    assert_no_process(found)
    assert not [str(each.message) for each in recwarn if "Worker" in str(each.message)]


PARENT = """
import numpy as np
from functools import partial
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.envs.workers import Workers
from toys import Obedient

if __name__ == "__main__":
    envs = TrainingVectorEnv(Workers(Obedient, [0], "Toy"))
    envs.reset()
    print(envs.vector.processes[0].pid, flush=True)
    input()
"""


def test_worker_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


DYING = """
import gymnasium, os, signal
from toys import Counter

class Dying(Counter):
    def step(self, action):
        if self.episode == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

gymnasium.register("Dying-v0", Dying, disable_env_checker=True)
"""


def test_run_with_a_killed_worker_saves_and_exits_with_1(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["--data.env_id=dying:Dying-v0", "--data.num_envs=2", "--data.vector_env=overlapped", "--data.batch_size=4"]
    words += ["--model.hidden_dims=[8]", "--data.steps_per_epoch=100", "--data.eval_episodes=1"]
    words += ["--collector.warmup_steps=20", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    assert main(["fit", *words]) == 1
    said = capfd.readouterr().err
    assert "of dying:Dying-v0 is lost, because its process was killed by SIGKILL. This step is not stored." in said
    assert "Traceback" not in said
    (last,) = tmp_path.rglob("last.ckpt")
    assert read_checkpoint(last)["clocks"]["env_steps"] == 60


def test_environment_that_cannot_be_sent_is_usage_error() -> None:
    lock = threading.Lock()

    def make() -> Any:
        assert not lock.locked()
        return Seeded()

    with pytest.raises(UsageError, match=r"^data.vector_env must be sync if Toy cannot be made in another process \("):
        Workers(make, [0], "Toy")
