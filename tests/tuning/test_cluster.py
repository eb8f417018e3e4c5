"""Check sweeps on a Ray cluster, with a stand-in for Ray: `tests/integration/test_ray.py` has a real one."""

import ast
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fit_stub
from processes import wait_for
from ray_stub import RayStub
from td3_lightning.cli.app import main
from td3_lightning.reporting.run_dir import RunLock
from td3_lightning.tuning import node
from td3_lightning.tuning.cluster import Cluster
from td3_lightning.tuning.run import Plan, Process, Run
from td3_lightning.tuning.space import Space
from td3_lightning.tuning.study import Search, run_study

SEARCH = Search(Space({"data.n_step": {"low": 1, "high": 5}}), 3)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> RayStub:
    """Replace Ray, and the process that looks for a cluster."""
    stub = RayStub()
    monkeypatch.setitem(sys.modules, "ray", stub)
    monkeypatch.setattr(node, "INTERVAL", 0.01)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return stub


@pytest.fixture
def cluster(ray: RayStub) -> Iterator[Cluster]:
    found = Cluster("auto")
    yield found
    found.close()


@pytest.fixture
def run(plan: Plan) -> Run:
    found = Run(plan.folder / "trial_0", ("--data.n_step=3",))
    found.folder.mkdir(parents=True)
    return found


def starts(run: Run) -> list[str]:
    log = run.folder / "log.txt"
    return [line for line in log.read_text().splitlines() if line.startswith("start fit ")] if log.exists() else []


def end_of(process: Process) -> int:
    (code,) = wait_for(lambda: [code for code in [process.poll()] if code is not None])
    return int(code)


def test_trials_run_on_the_cluster(plan: Plan, cluster: Cluster, ray: RayStub) -> None:
    Path("plan.txt").write_text("trial_1 kill 2\ntrial_2 fail diverged\n")
    run_study(plan, SEARCH, cluster.start)
    finished, killed, failed = (Run(plan.folder / f"trial_{number}", ()) for number in range(3))
    assert [len(starts(each)) for each in (finished, killed, failed)] == [1, 2, 1]
    assert starts(killed)[1] == f"{starts(killed)[0]} {fit_stub.resume_words(killed.folder)}"
    assert [each.record["exit_code"] for each in (finished, killed, failed)] == [0, 0, 1]
    assert len(killed.evaluations("eval/return_mean")) == fit_stub.EVALUATIONS
    assert "trial 2,failed," in (plan.folder / "trials.csv").read_text()
    assert len(ray.actors) == 4
    assert all(actor.is_killed for actor in ray.actors)  # none holds CPUs
    assert ray.actors[0].options == {
        "num_cpus": 1,
        "max_concurrency": 2,
        "max_restarts": 3,
        "max_task_retries": 3,
    }


def test_stopped_run_saves_itself(plan: Plan, cluster: Cluster, run: Run) -> None:
    Path("plan.txt").write_text("trial_0 pause 60\n")
    process = cluster.start(run, plan)
    wait_for(lambda: process.poll() or len(run.evaluations("eval/return_mean")))
    process.stop()
    assert end_of(process) == 143
    assert run.record["exit_code"] == 143
    assert run.record["seconds"] > 0


def test_run_waits_for_the_process_of_a_lost_node(plan: Plan, cluster: Cluster, run: Run) -> None:
    version = run.folder / "version_0"
    version.mkdir()
    lock = RunLock(version)
    process = cluster.start(run, plan)
    time.sleep(0.1)
    assert process.poll() is None
    assert not starts(run)
    (version / "checkpoints").mkdir()
    (version / "checkpoints" / "last.ckpt").write_text("0")  # saved at the end
    lock.release()
    assert end_of(process) == 0
    assert starts(run)[0].endswith(fit_stub.resume_words(run.folder))


def test_cluster_that_does_not_answer_is_one_sentence(
    tmp_path: Path, ray: RayStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(*words: str, **options: Any) -> None:
        raise ConnectionError("no node")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "init", init)
    Path("tiny.yaml").write_text("data: {env_id: Pendulum-v1}\ntrainer: {accelerator: cpu}\n")
    assert main(["sweep", "--config", "tiny.yaml", "--seeds", "1", "--engine", "ray", "--ray_address", "a:1"]) == 2
    message = "ray_address must be the address of a running Ray cluster, got a:1 (no node)"
    assert capsys.readouterr().err.startswith(message)
    assert os.listdir() == ["tiny.yaml"]


def test_sigterm_still_saves_the_runs(ray: RayStub, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda *words, **options: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    Cluster("auto").close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_worker_imports_only_the_standard_library() -> None:
    """Ray sends the module by value; an import of this package would load torch in each worker."""
    tree = ast.parse(Path(node.__file__).read_text())
    names = {name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names}
    names |= {str(each.module) for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
