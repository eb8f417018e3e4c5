"""End this process after another process of the run has died.

A collective operation reports a process that died late (NCCL, a lost machine), and an evaluation does not call one. So
rank 0 keeps a connection to each other rank. The operating system closes it when a process or its machine dies.
"""

import json
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Client, Connection, wait
from typing import Any

GRACE = 30.0  # seconds for a collective operation to fail, whose error is more specific
CLOSING = b"closing"
KEY = "peers"  # in the store: port and password
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # find a lost machine in 25 seconds


class PeerWatch:
    """Watch the other processes of a run in a thread until `close`.

    If one of them ends without `close`, this process writes one sentence and ends with status 1 after `GRACE` seconds.

    Args:
        rank: Number of this process.
        world_size: Number of processes.
        store: Key-value store of all processes, in which rank 0 stores its port and password.
        address: Address of rank 0.
    """

    def __init__(self, rank: int, world_size: int, store: Any, address: str) -> None:
        self.rank = rank
        self._closed = False
        self._peers: dict[Connection, int] = {}  # ranks
        self._joining = threading.Lock()
        if rank == 0:
            password = secrets.token_hex()
            server = socket.create_server(("", 0), backlog=world_size)
            server.settimeout(1.0)  # to notice that all have joined
            store.set(KEY, json.dumps([server.getsockname()[1], password]))
            run, arguments = self._serve, (server, password, world_size)
        else:
            run, arguments = self._join, (store, address)  # type: ignore[assignment]
        threading.Thread(target=run, args=arguments, name="peer-watch", daemon=True).start()

    def close(self) -> None:
        """Announce to the other processes that this one ends as planned."""
        self._closed = True
        self._send(CLOSING)

    def _serve(self, server: socket.socket, password: str, world_size: int) -> None:
        # A connection that sends nothing, for example of a port scanner, waits in its own thread.
        while len(self._peers) < world_size - 1:
            with suppress(OSError):
                arguments = (Connection(server.accept()[0].detach()), password, world_size)
                threading.Thread(target=self._greet, args=arguments, name="peer-watch", daemon=True).start()
        server.close()

    def _greet(self, peer: Connection, password: str, world_size: int) -> None:
        with suppress(EOFError, OSError, ValueError):  # not a process of this run
            given, rank = peer.recv_bytes(200).decode("ascii").split(" ")
            if not secrets.compare_digest(given, password):
                return
            with self._joining:
                self._add(peer, int(rank))
                is_last = len(self._peers) == world_size - 1
            if is_last:
                self._watch()

    def _join(self, store: Any, address: str) -> None:
        # Without a connection, for example behind a firewall, the collective operations remain.
        with suppress(EOFError, OSError, RuntimeError):  # RuntimeError: the store has closed
            port, password = json.loads(store.get(KEY))
            peer = Client((address, port))
            peer.send_bytes(f"{password} {self.rank}".encode())
            self._add(peer, 0)
        self._watch()

    def _add(self, peer: Connection, rank: int) -> None:
        with socket.socket(fileno=os.dup(peer.fileno())) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):  # not on every system
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._peers[peer] = rank

    def _watch(self) -> None:
        while self._peers and not self._closed:
            for peer in wait(list(self._peers)):
                rank = self._peers.pop(peer)  # type: ignore[call-overload]
                try:
                    message = peer.recv_bytes()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    message = str(rank).encode()
                if message != CLOSING and not self._closed:  # a process that has received CLOSING closes its end
                    self._end(int(message))

    def _end(self, rank: int) -> None:
        """End this process and all others, because a process has died."""
        self._send(str(rank).encode())
        time.sleep(GRACE)
        if not self._closed:
            text = f"Another process of this run has ended, so this one ends too. Read the output of rank {rank}.\n"
            os.write(sys.stderr.fileno(), text.encode())
            os._exit(1)  # the main thread may be blocked in torch

    def _send(self, message: bytes) -> None:
        for peer in list(self._peers):
            with suppress(OSError):
                peer.send_bytes(message)
