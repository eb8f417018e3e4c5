"""Kill and stop ranks of runs with two processes at random moments, resume the runs, and compare them.

    python tests/support/rank_crash_test.py 50    (make crash-test RANKS=2)

The processes are started in three ways: by the package's own launcher, by torchrun on one node, and by torchrun on two
nodes of this machine that share a disk. One rank receives one signal: half of the signals are SIGKILL, the others
SIGTERM and SIGINT. A fifth of them arrives before `fit`, and half of the other SIGKILLs while the rank writes. After
each signal, all processes must end within 60 seconds, and the next command must resume the run. A run that ends is
compared to the bit with an uninterrupted one, as in crash_test.py.
"""

import argparse
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import yaml
from torch.distributed.launcher import LaunchConfig, elastic_launch

from crash_test import COMMON, WORLDS, compare, start_of, warm_up
from faults import ANY_TIME, WRITING, run, send
from processes import kill

LIMIT = 60.0  # seconds from a signal to the end of all processes
START_LIMIT = 400.0  # seconds for a run without a signal
FAULT = "RANK_FAULT"  # environment variable
STARTING = "before fit"
LAUNCHER = "Lightning's launcher"
DEVICES: dict[str, dict[str, int]] = {
    LAUNCHER: {"devices": 2},
    "torchrun": {"devices": 2},
    "torchrun, two nodes": {"devices": 1, "num_nodes": 2},
}


class Fault(NamedTuple):
    """A signal that one rank sends to itself."""

    rank: int
    number: str  # name of the signal
    when: str
    moment: float  # CPU seconds, or a number of writes
    delay: float  # seconds after the write


# In a rank.


def train(ckpt_path: Path | None) -> int:
    """Train as one rank. Return the exit status."""
    rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
    fault, kind = Fault(*json.loads(os.environ[FAULT])), ""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork of torchrun's agent inherits its handler
    if fault.rank == rank and fault.when == STARTING:
        send(getattr(signal, fault.number), fault.moment)
    elif fault.rank == rank:
        kind = fault.when if fault.number == "SIGKILL" else fault.number
    began = time.process_time()
    try:
        status, writes, seconds = run(Path.cwd(), ckpt_path, kind, fault.moment, fault.delay)
        Path(f"measured.{rank}").write_text(json.dumps([writes, seconds, time.process_time() - began - seconds]))
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    except BaseException as error:
        print(repr(error), flush=True)
        status = 99
    Path(f"status.{rank}").write_text(str(status))
    if status:
        os._exit(status)
    return status


# Around them.


def start(layout: str, node: int, port: int, ckpt_path: Path | None, output: int) -> int:
    """Start a node of a run in a fork of this process, which has imported everything. Return its PID."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(output, stream)
        if layout == LAUNCHER:
            sys.argv = [__file__, "--rank", *([str(ckpt_path)] if ckpt_path else [])]  # Lightning starts rank 1 by it
            os._exit(train(ckpt_path))
        elastic_launch(elastic_config(layout, node, port), train)(ckpt_path)  # as torchrun does
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)


def elastic_config(layout: str, node: int, port: int) -> LaunchConfig:
    """Return the options of torchrun."""
    devices = DEVICES[layout]
    num_nodes = devices.get("num_nodes", 1)
    rendezvous = {"rdzv_backend": "static", "rdzv_endpoint": f"127.0.0.1:{port}", "rdzv_configs": {"rank": node}}
    return LaunchConfig(
        num_nodes, num_nodes, devices["devices"], run_id="none", max_restarts=0, start_method="fork", **rendezvous
    )


def fit(layout: str, folder: Path, fault: Fault) -> tuple[dict[int, int | None], float]:
    """Train with two processes, from the last checkpoint if there is one.

    Returns:
        The exit status of each rank, None if a signal killed it, and the seconds from the fault to the last end.

    Raises:
        TimeoutError: The processes did not end in time. They are killed.
    """
    struck, paths = folder / "struck", [folder / f"status.{rank}" for rank in (0, 1)]
    for path in [struck, *paths]:
        path.unlink(missing_ok=True)
    ckpt_path = start_of(folder)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), FAULT: json.dumps(fault)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    nodes = [start(layout, node, port, ckpt_path, writer) for node in range(DEVICES[layout].get("num_nodes", 1))]
    os.close(writer)
    try:
        wait_for_end(reader, struck)
        seconds = time.time() - struck.stat().st_mtime if struck.exists() else 0.0
    finally:
        for pid in nodes:
            kill(pid)
            os.waitpid(pid, 0)
    return {rank: int(path.read_text()) if path.exists() else None for rank, path in enumerate(paths)}, seconds


def wait_for_end(reader: int, struck: Path) -> None:
    """Copy the output of a run to a file until all processes that hold the other end of the pipe have ended."""
    started = time.time()
    with os.fdopen(reader, "rb") as pipe, Path("launcher log").open("ab") as log:
        while True:
            if select.select([pipe], [], [], 1.0)[0]:
                if not (text := os.read(reader, 65536)):
                    return
                log.write(text)
            began, limit = (struck.stat().st_mtime, LIMIT) if struck.exists() else (started, START_LIMIT)
            if time.time() > began + limit:
                raise TimeoutError(f"not all processes ended within {limit:g} seconds")


class RankedRun:
    """Run two processes without interruption and with faults.

    Args:
        layout: How the processes are started.
        root: Folder of the runs.
        chance: Generator of the random moments.
    """

    def __init__(self, layout: str, root: Path, chance: random.Random) -> None:
        self.layout, self.root, self.chance, self.runs = layout, root / layout, chance, 0
        self.whole = self._new_folder("whole")
        status, _ = fit(layout, self.whole, Fault(-1, "", "", 0.0, 0.0))
        if status != {0: 0, 1: 0}:
            raise RuntimeError(f"{layout} must finish without faults, got an error: {said(self.whole)}")
        self.measured = [json.loads((self.whole / f"measured.{rank}").read_text()) for rank in (0, 1)]

    def _new_folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True)
        own = {"trainer": COMMON["trainer"] | DEVICES[self.layout], "data": COMMON["data"] | WORLDS["Pendulum"]}
        (folder / "run.yaml").write_text(yaml.safe_dump(COMMON | own))
        return folder

    def _draw(self) -> Fault:
        """Draw a rank, a signal and a moment."""
        rank, number = self.chance.randint(0, 1), self.chance.choice(["SIGKILL", "SIGKILL", "SIGTERM", "SIGINT"])
        writes, seconds, start = self.measured[rank]
        when = STARTING if self.chance.random() < 0.2 else ANY_TIME
        if when == ANY_TIME and number == "SIGKILL" and self.chance.random() < 0.5:
            when = WRITING
        moment = {STARTING: self.chance.uniform(0, start), ANY_TIME: self.chance.uniform(0, seconds)}
        return Fault(rank, number, when, moment.get(when, self.chance.randint(1, writes)), self.chance.uniform(0, 2e-3))

    def run_with_faults(self, count: int, until: float) -> Counter[str]:
        """Repeat runs until the given number of faults has occurred or the time is over, and count the results."""
        counts: Counter[str] = Counter()
        while counts["signals"] < count and time.monotonic() < until:
            self.runs += 1
            folder = self._new_folder(f"run {self.runs}")
            while self._continue(folder, counts, is_last=counts["signals"] >= count or time.monotonic() > until):
                pass
        return counts

    def _continue(self, folder: Path, counts: Counter[str], is_last: bool) -> bool:
        """Start or resume a run, count what happened, and return whether it must go on."""
        fault = self._draw()._replace(**({"rank": -1} if is_last else {}))
        try:
            status, seconds = fit(self.layout, folder, fault)
        except TimeoutError as error:
            return self._lost(folder, counts, "hung", f"{error} after {fault}")
        struck = (folder / "struck").exists()
        print(f"{self.layout}: {fault if struck else 'no fault'}, {status}, {seconds:.1f} s", flush=True)
        if struck:
            counts.update({"signals": 1, fault.number: 1, f"rank {fault.rank}": 1, fault.when: 1})
            counts["slowest"] = max(counts["slowest"], round(seconds))
            if 2 in status.values() or 99 in status.values():
                return self._lost(folder, counts, "lost", f"ended with {status} after {fault}")
            counts[f"other rank ended with {status[1 - fault.rank]}"] += 1
        if status != {0: 0, 1: 0} and (struck or self._lost(folder, counts, "lost", f"ended with {status}")):
            return struck
        counts["runs"] += 1
        if found := compare(folder, self.whole):
            self._lost(folder, counts, "different", str(found))
        return False

    def _lost(self, folder: Path, counts: Counter[str], kind: str, why: str) -> bool:
        counts[kind] += 1
        print(f"{folder} is {kind}: {why}: {said(folder)}", flush=True)
        return False


def said(folder: Path) -> str:
    """Return the end of the output of a run."""
    return "".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*log")))


def run_all(count: int, layouts: list[str], seed: int, minutes: float, root: Path) -> dict[str, Counter[str]]:
    """Send signals to the ranks of runs in all layouts."""
    until = time.monotonic() + 60 * minutes
    chance, share = random.Random(seed), -(-count // len(layouts))
    warm_up(root)
    return {layout: RankedRun(layout, root, chance).run_with_faults(share, until) for layout in layouts}


def main(args: list[str]) -> int:
    """Parse the command line, and print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=50, help="number of signals")
    parser.add_argument("--layouts", nargs="+", choices=DEVICES, default=list(DEVICES), help="default: all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="seed of the moments")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--folder", type=Path, help="folder in which the runs stay")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.folder or Path(temporary)).resolve()
        results = run_all(options.count, options.layouts, options.seed, options.minutes, root)
    print(f"seed {options.seed}")
    for layout, counts in results.items():
        print(layout, json.dumps(counts))
    return int(any(counts[name] for counts in results.values() for name in ("hung", "lost", "different")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        os._exit(train(Path(sys.argv[2]) if sys.argv[2:] else None))
    sys.exit(main(sys.argv[1:]))
