"""Test that all processes of a run start together, and that all of them end if one of them fails."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

from nodes import FIT, LIMIT, SMALL, ended, start
from one_sentence import refused
from processes import descendants, free_port, is_running, wait_for
from td3_lightning.cli import rendezvous
from td3_lightning.cli.rendezvous import Rendezvous, join_store, serve_store
from td3_lightning.errors import RunError, UsageError


@pytest.mark.parametrize(
    ("variables", "rank", "trainer", "launched"),
    [
        ({}, 0, (1, 1, 1), None),
        ({}, 1, (2, 1, 2), None),  # started by Lightning
        ({"SLURM_PROCID": "0"}, 0, (1, 1, 1), None),  # a job of one process
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, 3, (2, 2, 4), None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, 0, (1, 1, 1), 4),
        ({"SLURM_PROCID": "1"}, 1, (1, 1, 1), 2),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, 0, (2, 1, 1), 1),
        ({"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2"}, 0, (1, 1, 1), 2),
    ],
)
def test_processes_that_the_trainer_does_not_count_are_refused(
    variables: dict[str, str], rank: int, trainer: Any, launched: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    devices, nodes, world_size = trainer
    checked: Any = SimpleNamespace(num_devices=devices, num_nodes=nodes, world_size=world_size, strategy=None)
    if launched is None:
        rendezvous.check_processes(checked)
        return
    with refused(f"trainer.devices times trainer.num_nodes must be {launched}", str(devices), fix="Set both"):
        rendezvous.check_processes(checked)


def meet(*parts: Callable[[Rendezvous], None]) -> list[BaseException | None]:
    """Run one part per rank, each in its own thread, and return the exceptions."""
    port, raised = free_port(), [None for _ in parts]

    def work(rank: int) -> None:
        open_store = serve_store if rank == 0 else join_store
        meeting = Rendezvous(rank, len(parts), partial(open_store, "127.0.0.1", port))
        meetings.append(meeting)  # the store of rank 0 lives until every rank has read it
        try:
            with meeting.guard():
                parts[rank](meeting)
        except (UsageError, RunError, KeyError, KeyboardInterrupt) as error:
            raised[rank] = error  # type: ignore[call-overload]

    meetings: list[Rendezvous] = []
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(raised)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "Lightning does not accept the launcher: You set `--ntasks=2` in your SLURM bash script, but"),
        ({"SLURM_NTASKS_PER_NODE": "2"}, "SLURM_PROCID must be set for several processes, got none. Use torchrun or"),
    ],
)
def test_job_without_srun_is_refused(variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)
    for name, value in {"SLURM_NTASKS": "2", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        Rendezvous.of_launcher()
    assert str(caught.value).startswith(message)


def ready(**facts: Any) -> Callable[[Rendezvous], None]:
    return lambda meeting: meeting.agree(facts)


def broken(error: BaseException) -> Callable[[Rendezvous], None]:
    def fail(_: Rendezvous) -> None:
        raise error

    return fail


def test_ready_processes_agree() -> None:
    assert meet(*3 * [ready(ckpt_path="none")]) == [None, None, None]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_failure_of_one_process_ends_all_others(rank: int) -> None:
    parts = 3 * [ready()]
    parts[rank] = broken(UsageError("gamma must be in [0, 1], got 2."))
    start = time.monotonic()
    raised = meet(*parts)
    assert time.monotonic() - start < 10
    assert str(raised.pop(rank)) == "gamma must be in [0, 1], got 2."
    for other in raised:
        assert str(other) == f"Rank {rank} on {gethostname()} cannot start this run: gamma must be in [0, 1], got 2."


def test_bug_in_one_process_ends_all_others() -> None:
    raised = meet(ready(), broken(KeyError("tau")))
    assert isinstance(raised[1], KeyError)
    assert str(raised[0]) == f"Rank 1 on {gethostname()} cannot start this run: 'tau'"


@pytest.mark.parametrize(
    ("failure", "kind"), [(UsageError("No."), UsageError), (RunError("No."), RunError), (KeyboardInterrupt(), RunError)]
)
def test_other_processes_raise_the_kind_of_the_failure(failure: BaseException, kind: type) -> None:
    other, own = meet(ready(), broken(failure))
    assert own is failure
    assert type(other) is kind


def test_processes_with_the_same_error_do_not_wait() -> None:
    start = time.monotonic()
    raised = meet(*2 * [broken(UsageError("No file."))])
    assert [str(error) for error in raised] == ["No file.", "No file."]
    assert time.monotonic() - start < 10


def test_silent_process_ends_all_others_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TD3_LIGHTNING_START_TIMEOUT", "1")
    raised = meet(ready(), lambda _: None)
    assert isinstance(raised[0], RunError)
    assert "within 1 seconds, got no report from rank 1. Read its output" in str(raised[0])


def test_missing_store_ends_a_process_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TD3_LIGHTNING_START_TIMEOUT", "1.8")
    began = time.monotonic()
    with pytest.raises(RunError, match="could not connect"):
        Rendezvous(1, 2, partial(join_store, "127.0.0.1", free_port())).agree({})
    assert time.monotonic() - began > 1


@pytest.mark.parametrize("factor", [1.0, 2.5, 3.0])  # of its time limit that torch takes to fail
def test_attempts_to_join_a_store_end_in_time(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def fail(address: str, port: int, seconds: float, **_: Any) -> None:
        nonlocal now
        now += factor * seconds
        raise distributed.DistError("could not connect")

    monkeypatch.setenv("TD3_LIGHTNING_START_TIMEOUT", "1.8")
    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(rendezvous, "_store", fail)
    with pytest.raises(distributed.DistError):
        join_store("127.0.0.1", 1)
    assert 1.2 < now < 1.8 + 1e-9


def test_different_checkpoints_are_refused() -> None:
    for raised in meet(ready(ckpt_path="none"), ready(ckpt_path="last.ckpt (SHA-256 12)")):
        assert "ckpt_path must be the same in every process, got none on rank 0 and last.ckpt" in str(raised)


def test_single_process_has_no_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Rendezvous.of_launcher() is None
    env = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert Rendezvous.of_launcher() is None
    monkeypatch.setenv("TD3_LIGHTNING_START_TIMEOUT", "60s")  # only several processes use it
    assert Rendezvous.of_launcher() is None
    monkeypatch.setenv("TD3_LIGHTNING_START_TIMEOUT", "")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Rendezvous.of_launcher() is not None


@pytest.mark.parametrize("value", ["60s", "0", "-1", "nan", "inf", "1e300"])
def test_invalid_time_limit_is_one_sentence(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "2"}
    for name, held in {**launcher, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, held)
    monkeypatch.setenv("TD3_LIGHTNING_START_TIMEOUT", value)
    with refused("TD3_LIGHTNING_START_TIMEOUT", repr(value), "Use 45, for example."):
        Rendezvous.of_launcher()


def test_several_nodes_require_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, Lightning waits for the other nodes, and no signal ends the process."""
    monkeypatch.chdir(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in rendezvous.NODES}
    words = ["-m", "td3_lightning", "fit", "--config=pendulum.yaml", "--trainer.num_nodes=2"]
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("trainer.num_nodes must be 1 without a launcher, got 2. Start the")


# Processes.


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def pair(folder: Path) -> subprocess.Popen[bytes]:
    """Start a run of two processes. Lightning starts the second one."""
    folder.joinpath("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    words = [*FIT, *SMALL, "--trainer.devices=2", "--trainer.max_epochs=100000"]
    return start([sys.executable, "-m", "td3_lightning", *words], folder)


@linux
@pytest.mark.parametrize("early", [True, False])
def test_killed_launcher_leaves_no_process(early: bool, tmp_path: Path) -> None:
    process = pair(tmp_path)
    with ended([process]):
        wait_for(lambda: descendants(process.pid) and (early or any(tmp_path.rglob("last.ckpt"))), LIMIT)
        children = descendants(process.pid)
        process.kill()
        wait_for(lambda: not any(map(is_running, children)), LIMIT)
    assert "Traceback" not in (tmp_path / "log").read_text()


@linux
@pytest.mark.parametrize("early", [True, False])
def test_killed_rank_ends_its_launcher_with_status_1(early: bool, tmp_path: Path) -> None:
    process = pair(tmp_path)
    with ended([process]):
        wait_for(lambda: descendants(process.pid) and (early or any(tmp_path.rglob("last.ckpt"))), LIMIT)
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
        assert process.wait(LIMIT) == 1
    text = (tmp_path / "log").read_text()
    assert "Rank 1 ended with status -9" in text if early else "nother process" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(("status", "expected"), [(130, 130), (2, 1)])
def test_launcher_ends_with_a_starting_rank(status: int, expected: int, tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time, types; from td3_lightning.cli.parent import watch_ranks; "
        f"rank = subprocess.Popen([sys.executable, '-c', 'raise SystemExit({status})']); "
        "watch_ranks(types.SimpleNamespace(procs=[rank])); time.sleep(60)"
    )
    process = start([sys.executable, "-c", program], tmp_path)
    with ended([process]):
        assert process.wait(LIMIT) == expected
    assert f"Rank 1 ended with status {status} " in (tmp_path / "log").read_text()


LAUNCHED = """
import os, subprocess, sys, time, types
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from torch import distributed
from td3_lightning.cli import parent
parent.GRACE = {grace}
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
rank = subprocess.Popen([sys.executable, "-c", "raise SystemExit({status})"])
launcher = types.SimpleNamespace(procs=[rank])
parent.watch_ranks(launcher)
while launcher.procs[0] is rank:
    time.sleep(0.01)
_ChildProcessObserver(os.getpid(), launcher.procs, sleep_period=1).start()
rank.wait()
time.sleep({seconds})
print("this process has handled the failure", flush=True)
"""


@pytest.mark.parametrize(
    ("status", "seconds", "grace", "expected", "text"),
    [
        pytest.param(1, 3, 60, 0, "this process has handled the failure", id="handled"),
        pytest.param(
            1, 60, 1, 1, "Rank 1 ended with status 1 more than 1 s ago, so this process ends too", id="blocked"
        ),
        pytest.param(143, 4, 1, 0, "this process has handled the failure", id="stopped"),
    ],
)
def test_launcher_has_time_to_handle_a_failed_rank(
    status: int, seconds: int, grace: int, expected: int, text: str, tmp_path: Path
) -> None:
    """Lightning's observer of the ranks would kill it."""
    program = LAUNCHED.format(status=status, seconds=seconds, grace=grace)
    process = start([sys.executable, "-c", program], tmp_path)
    with ended([process]):
        assert process.wait(LIMIT) == expected
    assert text in (tmp_path / "log").read_text()


@linux
def test_worker_of_killed_torchrun_saves_and_ends(tmp_path: Path) -> None:
    tmp_path.joinpath("here.yaml").write_text("data: {env_id: Pendulum-v1}\n")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", "-m", "td3_lightning", *FIT, *SMALL]
    process = start([sys.executable, *words, "--trainer.max_epochs=100000"], tmp_path)
    with ended([process]):
        wait_for(lambda: any(tmp_path.rglob("last.ckpt")), LIMIT)
        workers = descendants(process.pid)
        process.kill()
        wait_for(lambda: not any(map(is_running, workers)), LIMIT)
    assert "Stopped by SIGTERM" in (tmp_path / "log").read_text()
