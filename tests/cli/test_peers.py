"""Test that the processes of a run end when one of them dies, although none of them calls a collective operation."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from processes import wait_for
from td3_lightning.cli.peers import KEEPALIVE, PeerWatch

PROGRAM = """
import os, sys, time
from pathlib import Path
from td3_lightning.cli import peers

class Files:
    def set(self, key, text):
        Path(key + ".new").write_text(text)
        os.rename(key + ".new", key)

    def get(self, key):
        while not os.path.exists(key):
            time.sleep(0.01)
        return Path(key).read_text()

peers.GRACE = 0.5
rank, store = int(sys.argv[1]), Files()
watch = peers.PeerWatch(rank, 3, store, "127.0.0.1")
while len(watch._peers) < (1 if rank else 2):
    time.sleep(0.01)
peer = next(iter(watch._peers))
store.set(f"ready {rank}", "")
for each in range(3):
    store.get(f"ready {each}")
"""
WAIT, DIE, LEAVE = "time.sleep(300)", "os._exit(9)", "watch.close()"
LIMIT = 120.0  # seconds; a busy machine starts the processes slowly


@contextmanager
def ranks(folder: Path, *ends: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start three processes that watch each other, and kill them after the block."""
    programs = [[sys.executable, "-c", PROGRAM + end, str(rank)] for rank, end in enumerate(ends)]
    processes = [subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) for words in programs]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("dead", [0, 2])
def test_all_processes_end_if_one_dies(dead: int, tmp_path: Path) -> None:
    ends = [WAIT, WAIT, WAIT]
    ends[dead] = DIE
    with ranks(tmp_path, *ends) as processes:
        for rank in {0, 1, 2} - {dead}:
            _, text = processes[rank].communicate(timeout=LIMIT)
            assert processes[rank].returncode == 1
            assert "Another process of this run has ended, so this one ends too. " in text
            assert text.endswith(f"Read the output of rank {dead}.\n")


@pytest.mark.parametrize("first", [0, 2])
def test_process_that_leaves_as_planned_ends_no_other(first: int, tmp_path: Path) -> None:
    ends = 3 * ["time.sleep(3.0); watch.close()"]
    ends[first] = LEAVE
    with ranks(tmp_path, *ends) as processes:
        began = time.monotonic()
        assert [process.wait(LIMIT) for process in processes] == [0, 0, 0]
        assert time.monotonic() - began > 3.0


class Store(dict[str, str]):
    """A store in this process."""

    set, get = dict.__setitem__, dict.__getitem__  # type: ignore[assignment]


def test_other_connections_neither_join_nor_delay_the_processes() -> None:
    store = Store()
    first = PeerWatch(0, 3, store, "127.0.0.1")
    address = ("127.0.0.1", json.loads(store["peers"])[0])
    with socket.create_connection(address), Client(address) as guess:  # the first one sends nothing
        guess.send_bytes(b"password 1")
        watches = [first, *(PeerWatch(rank, 3, store, "127.0.0.1") for rank in (1, 2))]
        wait_for(lambda: len(first._peers) == 2 and all(watch._peers for watch in watches))
        assert sorted(first._peers.values()) == [1, 2]
        for watch in watches:
            watch.close()


def test_closed_store_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def get(self, key: str) -> str:
            raise RuntimeError("Connection was closed")

    uncaught: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    before = set(threading.enumerate())  # other tests may have left threads
    PeerWatch(1, 2, Closed(), "127.0.0.1")
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert uncaught == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads options of Linux")
def test_lost_machine_is_found_in_25_seconds(tmp_path: Path) -> None:
    names = [name for name in KEEPALIVE if hasattr(socket, name)]
    options = [f"(socket.IPPROTO_TCP, socket.{name})" for name in names]
    show = "import socket; own = socket.socket(fileno=peer.fileno()); "
    show += f"print([own.getsockopt(*each) for each in [{', '.join(options)}]], file=sys.stderr); watch.close()"
    with ranks(tmp_path, LEAVE, show, LEAVE) as processes:
        assert processes[1].communicate(timeout=LIMIT)[1] == "[10, 5, 3]\n"
