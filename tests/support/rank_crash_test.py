"""Kill and stop ranks of runs with two processes at random moments, resume the runs, and compare them.

    python tests/support/rank_crash_test.py 50    (make crash-test RANKS=2)

torchrun starts the processes. One rank receives one signal: half of the signals are SIGKILL, half of them while the
rank writes; the others are SIGTERM and SIGINT. After each signal, all processes must end within 60 seconds, and the
next command must resume the run. A run that ends is compared to the bit with an uninterrupted one, as in crash_test.py.
"""

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import yaml
from torch.distributed.launcher import LaunchConfig, elastic_launch

from crash_test import COMMON, WORLDS, compare, start_of, warm_up
from faults import ANY_TIME, WRITING, run
from processes import free_port, kill

LIMIT = 60.0  # seconds from a signal to the end of all processes
START_LIMIT = 400.0  # seconds for a run without a signal
FAULT = "RANK_FAULT"  # environment variable


class Fault(NamedTuple):
    """A signal that one rank sends to itself."""

    rank: int
    kind: str
    moment: float  # CPU seconds, or a number of writes
    delay: float  # seconds after the write


def train(ckpt_path: Path | None) -> int:
    """Train as one rank. Return the exit status."""
    rank, fault = int(os.environ["RANK"]), Fault(*json.loads(os.environ[FAULT]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork of torchrun's agent inherits its handler
    try:
        kind = fault.kind if fault.rank == rank else ""
        status, *measured = run(Path.cwd(), ckpt_path, kind, fault.moment, fault.delay)
        Path(f"measured.{rank}").write_text(json.dumps(measured))
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    except BaseException as error:
        print(repr(error), flush=True)
        status = 99
    Path(f"status.{rank}").write_text(str(status))
    if status:
        os._exit(status)
    return status


def start(port: int, ckpt_path: Path | None, output: int) -> int:
    """Start a run in a fork of this process, which has imported everything. Return its PID."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(output, stream)
        rendezvous = {"rdzv_backend": "static", "rdzv_endpoint": f"127.0.0.1:{port}", "rdzv_configs": {"rank": 0}}
        config = LaunchConfig(1, 1, 2, run_id="none", max_restarts=0, start_method="fork", **rendezvous)
        elastic_launch(config, train)(ckpt_path)  # as torchrun does
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)


def fit(folder: Path, fault: Fault) -> dict[int, int | None]:
    """Train with two processes, from the last checkpoint if there is one.

    Returns:
        The exit status of each rank, None if a signal killed it.

    Raises:
        TimeoutError: The processes did not end in time. They are killed.
    """
    struck, paths = folder / "struck", [folder / f"status.{rank}" for rank in (0, 1)]
    for path in [struck, *paths]:
        path.unlink(missing_ok=True)
    ckpt_path = start_of(folder)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), FAULT: json.dumps(fault)}
    port = free_port()
    reader, writer = os.pipe()
    pid = start(port, ckpt_path, writer)
    os.close(writer)
    try:
        wait_for_end(reader, struck)
    finally:
        kill(pid)
        os.waitpid(pid, 0)
    return {rank: int(path.read_text()) if path.exists() else None for rank, path in enumerate(paths)}


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


def new_folder(root: Path, name: str) -> Path:
    """Create the folder of a run with its configuration."""
    folder = root / name
    folder.mkdir(parents=True)
    own = {"trainer": {**COMMON["trainer"], "devices": 2}, "data": {**COMMON["data"], **WORLDS["Pendulum"]}}
    (folder / "run.yaml").write_text(yaml.safe_dump({**COMMON, **own}))
    return folder


def draw(chance: random.Random, whole: Path) -> Fault:
    """Draw a rank, a signal and a moment."""
    rank, kind = chance.randint(0, 1), chance.choice([ANY_TIME, WRITING, "SIGTERM", "SIGINT"])
    writes, seconds = json.loads((whole / f"measured.{rank}").read_text())
    moment = chance.randint(1, writes) if kind == WRITING else chance.uniform(0, seconds)
    return Fault(rank, kind, moment, chance.uniform(0, 2e-3))


def run_with_faults(count: int, root: Path, chance: random.Random) -> Counter[str]:
    """Repeat runs until the given number of faults has occurred, and count the results."""
    whole, counts, none = new_folder(root, "whole"), Counter[str](), Fault(-1, "", 0.0, 0.0)
    if (status := fit(whole, none)) != {0: 0, 1: 0}:
        raise RuntimeError(f"a run must finish without faults, got {status}: {(whole / 'launcher log').read_text()}")
    while counts["signals"] < count:
        folder, status = new_folder(root, f"run {counts['runs']}"), {}
        while status != {0: 0, 1: 0}:
            fault = draw(chance, whole) if counts["signals"] < count else none
            status = fit(folder, fault)
            struck = (folder / "struck").exists()
            print(f"{fault if struck else 'no fault'}, {status}", flush=True)
            counts["signals"] += struck
            if {2, 99} & set(status.values()) or (status != {0: 0, 1: 0} and not struck):
                counts["lost"] += 1
                print(f"{folder} ended with {status}: {(folder / 'launcher log').read_text()[-1500:]}")
                break
        else:
            counts["different"] += bool(found := compare(folder, whole))
            print(*found)
        counts["runs"] += 1
    return counts


def main() -> int:
    """Parse the command line, and print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=50, help="number of signals")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="seed of the moments")
    parser.add_argument("--folder", type=Path, help="folder in which the runs stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.folder or Path(temporary)).resolve()
        warm_up(root)
        counts = run_with_faults(options.count, root, random.Random(options.seed))
    print(json.dumps({"seed": options.seed, **counts}))
    return int(any(counts[name] for name in ("lost", "different")))


if __name__ == "__main__":
    sys.exit(main())
