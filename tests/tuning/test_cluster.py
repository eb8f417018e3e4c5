"""Check sweeps on a Ray cluster, with a stand-in for Ray: `tests/integration/test_ray.py` has a real one."""

import ast
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fit_stub
from processes import wait_for
from ray_stub import RayStub
from td3_lightning.cli.app import main
from td3_lightning.errors import RunError, UsageError
from td3_lightning.reporting.run_dir import RunLock
from td3_lightning.tuning import cluster as module
from td3_lightning.tuning import node
from td3_lightning.tuning.cluster import Cluster, threads_per_run
from td3_lightning.tuning.plan import Plan
from td3_lightning.tuning.run import Claim, Process, Run
from td3_lightning.tuning.seeds import run_seeds
from td3_lightning.tuning.space import Space
from td3_lightning.tuning.study import run_study
from td3_lightning.tuning.trials import Search

SEARCH = Search(Space({"data.n_step": {"low": 1, "high": 5}}), 3)
TINY = "data: {env_id: Pendulum-v1}\ntrainer: {accelerator: cpu}\n"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> RayStub:
    """Replace Ray, and the process that looks for a cluster."""
    stub = RayStub()
    monkeypatch.setitem(sys.modules, "ray", stub)
    monkeypatch.setattr(module, "PROBE", "")
    monkeypatch.setattr(node, "INTERVAL", 0.01)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return stub


@pytest.fixture
def cluster(ray: RayStub) -> Iterator[Cluster]:
    found = Cluster("auto", 2)
    yield found
    found.close()


@pytest.fixture
def run(plan: Plan) -> Iterator[Run]:
    """Return a run that is claimed."""
    found = Run(plan.folder / "trial_0", ("--data.n_step=3",))
    claim = Claim(found.folder)
    yield found
    claim.release()


def starts(run: Run) -> list[str]:
    return [line for line in run.log_lines() if line.startswith("start fit ")]


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
    assert ray.actors[0].options == {"num_cpus": 2, "max_restarts": 0, "max_concurrency": 2}


def test_seeds_of_a_local_sweep_continue_on_the_cluster(plan: Plan, cluster: Cluster) -> None:
    Path("plan.txt").write_text("seed_2 fail once\n")
    with pytest.raises(RunError, match="seed 2 is failed"):
        run_seeds(plan, [1, 2])
    Path("plan.txt").unlink()
    run_seeds(plan, [1, 2], cluster.start)
    assert [len(starts(Run(plan.folder / f"seed_{seed}", ()))) for seed in (1, 2)] == [1, 2]


def test_stopped_run_saves_itself(plan: Plan, cluster: Cluster, run: Run) -> None:
    Path("plan.txt").write_text("trial_0 pause 60\n")
    process = cluster.start(run, plan)
    wait_for(lambda: process.poll() or len(run.evaluations("eval/return_mean")))
    process.stop()
    assert end_of(process) == 143
    assert run.record["exit_code"] == 143
    assert run.record["seconds"] > 0


def test_stopped_run_without_cpus_leaves_the_queue(
    plan: Plan, cluster: Cluster, ray: RayStub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "wait", lambda references, timeout: ([], references))
    process = cluster.start(run, plan)
    assert process.poll() is None
    process.stop()
    assert ray.actors[0].is_killed
    ray.actors[0].threads.shutdown()


def test_node_without_the_folder_ends_the_sweep(plan: Plan, cluster: Cluster, run: Run) -> None:
    (run.folder / "claim").unlink()
    with pytest.raises(RunError, match=r"^/.* must be shared by all nodes, got none on .*\. Mount it there\.$"):
        end_of(cluster.start(run, plan))
    assert not (run.folder / "log.txt").exists()


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


def test_run_in_use_ends_the_sweep(plan: Plan, cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "LOCK_TIMEOUT", 0.05)
    (run.folder / "version_0").mkdir()
    lock = RunLock(run.folder / "version_0")
    with pytest.raises(RunError, match=r"trial_0 must be unused, got a run in progress\. Stop that process\.$"):
        end_of(cluster.start(run, plan))
    lock.release()


@pytest.mark.parametrize(
    ("sizes", "workers", "threads"),
    [([4], 1, 4), ([4], 3, 1), ([8, 8], 2, 8), ([8, 8], 3, 4), ([16, 2], 3, 5), ([4, 4, 4], 4, 2), ([2], 9, 1)],
)
def test_workers_fit_on_the_nodes(
    sizes: list[int], workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads_per_run(sizes, workers) == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_per_run(sizes, workers) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    with pytest.raises(UsageError, match="OMP_NUM_THREADS must be at most"):
        threads_per_run(sizes, workers)


def test_sigterm_still_saves_the_runs(ray: RayStub, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda *words, **options: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    Cluster("auto", 1).close()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("words", "probe", "message"),
    [
        ("--engine slurm", "", "engine must be one of local, ray, got 'slurm'. Use local."),
        ("--ray_address head:6379", "", "ray_address must be used with --engine ray, got 'head:6379'. Add --engine"),
        ("--engine ray --ray_address local", "", "ray_address must be the address of a running Ray cluster, got local"),
        ("--engine ray", "import sys; sys.exit('No instance.')", "ray_address must be the address of a running Ray"),
    ],
)
def test_invalid_cluster_is_one_sentence(
    words: str, probe: str, message: str, tmp_path: Path, ray: RayStub, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert error_of(words, tmp_path, monkeypatch, capsys, probe).startswith(message)
    assert ray.calls == []


def error_of(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], probe: str = "",
    limit: str = "1",
) -> str:  # fmt: skip
    """Return the only line of an invalid command, which has created no file."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(module, "PROBE", probe)
    monkeypatch.setenv("TD3_LIGHTNING_START_TIMEOUT", limit)
    Path("tiny.yaml").write_text(TINY)
    assert main(["sweep", "--config", "tiny.yaml", "--seeds", "1", *shlex.split(words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert os.listdir() == ["tiny.yaml"]
    return line


def test_cluster_without_an_answer_is_named(
    tmp_path: Path, ray: RayStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_of("--engine ray --ray_address head:1", tmp_path, monkeypatch, capsys, "import time; time.sleep(9)")
    assert "got head:1 (no answer in 1 seconds). Use ray start --head" in line


def test_invalid_time_limit_is_one_sentence(
    tmp_path: Path, ray: RayStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_of("--engine ray", tmp_path, monkeypatch, capsys, limit="60s")
    assert line.startswith("TD3_LIGHTNING_START_TIMEOUT must be a number of seconds in (0, 1e+06], got '60s'. Use 20, ")


def test_too_many_cpus_per_run_are_refused(
    tmp_path: Path, ray: RayStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    line = error_of("--engine ray", tmp_path, monkeypatch, capsys)
    assert line.startswith("OMP_NUM_THREADS must be at most 4, the CPUs of the largest node of the cluster, got 5. Use")
    assert ray.calls == ["init auto", "shutdown"]


def test_missing_ray_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "Use pip install 'td3_lightning[ray]'." in error_of("--engine ray", tmp_path, monkeypatch, capsys)


def test_worker_imports_only_the_standard_library() -> None:
    """Ray sends the module by value; an import of this package would load torch in each worker."""
    tree = ast.parse(Path(node.__file__).read_text())
    names = {name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names}
    names |= {str(each.module) for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
