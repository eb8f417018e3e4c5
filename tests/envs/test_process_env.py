"""Check that environments in several processes give the results of one process, and how they fail."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from td3_lightning import ReplayData, UsageError
from td3_lightning.envs.env_group import Step
from td3_lightning.envs.make import make_wrapped
from td3_lightning.envs.process_env import WorkerPool
from td3_lightning.envs.vector_env import TrainingVectorEnv
from td3_lightning.errors import EnvError
from td3_lightning.seeding import derive_seed
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from tests.envs.test_vector_env import through_a_file
from toys import Counter, Obedient, Restless, Sampler, Seeded

NONE = np.zeros((3, 1), np.float32)


def new_envs(kind: Any = Seeded, num_envs: int = 3, workers: int = 2, timeout: float | None = 60.0) -> Any:
    return TrainingVectorEnv(partial(make_wrapped, kind, {}, (), timeout), num_envs, workers, timeout)


def pids(envs: Any) -> list[int]:
    return [worker.process.pid for worker in envs.group.workers]


def assert_no_process(found: list[int]) -> None:
    for pid in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def assert_same(one: Step, other: Step) -> None:
    for name in ("obs", "action", "last_obs"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.reward, one.terminated, one.truncated) == (other.reward, other.terminated, other.truncated)
    assert one.reports == other.reports


def test_workers_match_one_process_bit_for_bit() -> None:
    """States are exchanged in both directions in the middle of episodes."""
    one, other = new_envs(workers=0), new_envs()
    found = pids(other)
    rng = np.random.default_rng(3)
    for envs in (one, other):
        envs.reset(7)
    ends = 0
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
    assert one.group.spaces == other.group.spaces
    assert one.group.generators() == other.group.generators() == ["PCG64"] * 3
    for envs in (one, other):
        envs.close()
    assert_no_process(found)


class Gated(Seeded):
    """Wait in each step until a file exists."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        while not self.path.exists():
            time.sleep(0.001)
        return super().step(action)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_worker_does_not_load_pytorch() -> None:
    """PyTorch would take 2 seconds and 130 MB in each worker."""
    envs = new_envs("LunarLanderContinuous-v3")
    envs.reset()
    envs.step(np.zeros((3, 2), np.float32))
    assert len(envs.state_dict()["episodes"]) == 3
    loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in pids(envs)]
    envs.close()
    assert all("_multiarray_umath" in maps for maps in loaded)
    assert not any("libtorch" in maps for maps in loaded)


def test_worker_that_imports_pytorch_later_is_seeded() -> None:
    import torch

    envs = new_envs(Sampler, num_envs=2)
    envs.reset()
    obs = envs.step(NONE[:2]).last_obs
    envs.close()
    seeds = [derive_seed("environment worker", index) for index in (0, 1)]
    np.testing.assert_array_equal(obs, [torch.rand(1, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def test_step_runs_between_begin_and_finish(tmp_path: Path) -> None:
    envs = TrainingVectorEnv(partial(make_wrapped, Gated, {"path": tmp_path / "gate"}, (), 30.0), 1, 1, 30.0)
    envs.reset()
    before, action = envs.obs.copy(), np.ones((1, 1), np.float32)
    envs.begin(action)
    assert envs.is_stepping
    np.testing.assert_array_equal(envs.obs, before)
    (tmp_path / "gate").touch()  # a begin that finishes the step would never come here
    step = envs.finish()
    assert not envs.is_stepping
    np.testing.assert_array_equal(step.obs, before)
    np.testing.assert_array_equal(step.action, action)
    envs.close()


def test_step_that_has_begun_is_restored_bit_for_bit() -> None:
    """The step is exchanged between workers and one process, with and without the end of an episode."""
    workers, other, expected = new_envs(workers=1), new_envs(workers=0), new_envs(workers=0)
    for envs in (workers, other, expected):
        envs.reset(7)
    rng, ends = np.random.default_rng(3), 0
    for _ in range(12):
        action = rng.uniform(-0.5, 1.5, (3, 1)).astype(np.float32)
        workers.begin(action)
        state = through_a_file(workers.state_dict())
        assert other.load_state_dict(state) == []
        step = expected.step(action)
        ends += len(step.reports)
        for envs in (workers, other):
            assert envs.is_stepping
            assert_same(envs.finish(), step)
            np.testing.assert_array_equal(envs.obs, expected.obs)
            assert "step" not in envs.state_dict()
    assert ends > 3
    workers.close()


def test_step_before_an_episode_that_is_lost_is_discarded() -> None:
    envs, again = new_envs(Restless, workers=0), new_envs(Restless, workers=0)
    for each in (envs, again):
        each.reset()
    envs.begin(NONE)
    assert again.load_state_dict(through_a_file(envs.state_dict())) == [0, 1, 2]
    assert not again.is_stepping


def test_run_can_be_saved_after_a_worker_is_killed_in_flight() -> None:
    envs = new_envs(Obedient, 2, 1)
    found = pids(envs)
    envs.reset()
    envs.begin(np.array([[0], [5]], np.float32))
    with pytest.raises(
        EnvError, match=r"^Environment 1 of Obedient is lost, because its process was killed by SIGKILL"
    ):
        envs.state_dict()
    assert envs.state_dict() == {"episodes": []}
    envs.close()
    assert_no_process(found)


@pytest.mark.parametrize(("lost", "workers"), [(1, 1), (1, 2), (2, 3)])
def test_worker_lost_in_a_restoration_is_one_sentence(lost: int, workers: int) -> None:
    """The environment that is replayed is named, also before the first reset of the worker."""
    envs = new_envs(Obedient, 3, workers)
    actions = np.zeros((1, 1), np.float32)
    state: Any = {"actions": actions, "obs": np.zeros(1, np.float32), "seed": 1, "return": 0.0}
    states = [{**state, "actions": actions + 5 * (place == lost)} for place in range(3)]
    with pytest.raises(EnvError, match=rf"^Environment {lost} of Obedient is lost, because its process was killed by"):
        envs.load_state_dict({"episodes": states})
    envs.close()


def failure(envs: Any, order: int) -> EnvError:
    """Let the last environment fail in its second step."""
    envs.reset()
    envs.step(np.zeros((2, 1), np.float32))
    with pytest.raises(EnvError) as caught:
        envs.step(np.array([[0], [order]], np.float32))
    return caught.value


def test_exception_in_worker_is_that_of_one_process() -> None:
    seed = derive_seed("training environment", 1)
    expected = (
        rf"^Environment 1 of Obedient raised OSError: gone \(.*toys.py, line \d+\) at step 2 of the episode with "
        rf"seed {seed}\. This step is not stored\. Correct the environment, or wrap it\.$"
    )
    for workers in (0, 2):
        envs = new_envs(Obedient, 2, workers)
        error = failure(envs, 1)
        assert re.match(expected, str(error))
        assert "gone" in str(error.__cause__)
        envs.discard_episodes()
        assert envs.state_dict() == {"episodes": []}
        envs.close()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (2, r"did not return within 0.5 seconds at step 2 of the episode with seed \d+"),
        (3, r"did not return within 3 seconds"),
        (4, "is lost, because its process exited with status 7"),
        (5, "is lost, because its process was killed by SIGKILL"),
    ],
)
def test_lost_or_hanging_worker_is_one_sentence(order: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.envs.process_env.GRACE", 1.0)
    envs = new_envs(Obedient, 2, 1, 0.5)
    found = pids(envs)
    start = time.monotonic()
    error = failure(envs, order)
    fix = "(Increase data.step_timeout, or correct|Correct) the "
    assert re.match(rf"^Environment 1 of Obedient {said}\. This step is not stored\. {fix}", str(error))
    envs.close()
    assert time.monotonic() - start < 20
    assert_no_process(found)


class Slow(Counter):
    """Take 0.7 seconds for each step and for each reset, and end each episode after one step."""

    def __init__(self) -> None:
        super().__init__(length=1)

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.7)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        time.sleep(0.7)
        return super().step(action)


def test_step_and_reset_have_one_time_limit_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("td3_lightning.envs.process_env.GRACE", 0.3)
    envs = TrainingVectorEnv(partial(make_wrapped, Slow, {}, (), None), 1, 1, 1.0)
    envs.reset()
    assert envs.step(np.zeros((1, 1), np.float32)).terminated == [True]
    envs.close()


def test_module_path_may_contain_what_python_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("folder")])
    envs = new_envs(num_envs=1, workers=1)
    envs.reset()
    assert envs.obs.shape == (1, 3)
    envs.close()


def test_worker_makes_the_newest_version_of_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, length in (("v2", 3), ("v10", 1)):
        spec = EnvSpec(f"toys/Main-{version}", partial(Counter, length), disable_env_checker=True)
        monkeypatch.setitem(gym.registry, spec.id, spec)
    envs = TrainingVectorEnv(partial(make_wrapped, "toys/Main", {}, (), None), 1, 1)
    envs.reset()
    assert envs.step(np.zeros((1, 1), np.float32)).terminated == [True]
    envs.close()


PARENT = """
import numpy as np
from functools import partial
from td3_lightning.envs.vector_env import TrainingVectorEnv
from toys import Obedient

class Mine(Obedient):
    '''An environment of a script without a main guard.'''

envs = TrainingVectorEnv(Mine, 1, 1)
envs.reset()
print(envs.group.workers[0].process.pid, flush=True)
envs.step(np.array([[3]], np.float32))
"""


def test_worker_ends_with_a_killed_parent_in_a_hanging_step() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
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


@pytest.mark.parametrize("mode", ["lockstep", "overlapped"])
def test_run_with_a_killed_worker_saves_and_exits_with_1(mode: str, tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    words = ["--data.env_id=dying:Dying-v0", "--data.num_envs=2", "--data.env_workers=1", "--data.batch_size=4"]
    words += ["--model.hidden_dims=[8]", "--data.steps_per_epoch=100", "--data.eval_episodes=1"]
    words += [
        f"--data.env_mode={mode}",
        "--collector.warmup_steps=20",
        "--trainer.enable_progress_bar=false",
        "--trainer.accelerator=cpu",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "td3_lightning", "fit", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    said = "Environment 0 of Dying-v0 is lost, because its process was killed by SIGKILL. This step is not stored."
    assert ended.returncode == 1, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    (last,) = tmp_path.rglob("last.ckpt")
    assert read_checkpoint(last)["clocks"]["env_steps"] == 60


def test_environment_that_cannot_be_sent_is_usage_error() -> None:
    lock = threading.Lock()

    def make() -> Any:
        return Seeded(), lock

    with pytest.raises(
        UsageError, match=r"^data.env_workers must be 0 if the environment cannot be sent to another .*"
    ):
        WorkerPool(make, 1, 1, None)


@pytest.mark.parametrize(
    ("workers", "said"), [(-1, "in \\[0, 2\\], got -1"), (3, "in \\[0, 2\\], got 3"), (0.5, "an int")]
)
def test_invalid_number_of_workers_is_usage_error(workers: Any, said: str) -> None:
    with pytest.raises(UsageError, match=rf"^env_workers must be {said}"):
        ReplayData("toys/Seeded-v0", num_envs=2, env_workers=workers)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env_workers": 0}, "env_workers must be at least 1 with data.env_mode overlapped, got 0. Use 1, or"),
        ({"env_mode": "async"}, "env_mode must be lockstep or overlapped, got 'async'. Use"),
    ],
)
def test_invalid_mode_is_usage_error(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(said)}"):
        ReplayData("toys/Seeded-v0", **{"env_workers": 1, "env_mode": "overlapped", **settings})


def test_time_limit_longer_than_the_system_can_count() -> None:
    envs = new_envs(workers=1, timeout=1e8)
    try:
        envs.reset(7)
        assert envs.step(NONE).obs.shape == (3, 3)
    finally:
        envs.close()
