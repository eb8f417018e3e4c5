"""Timing inside a measured process: its environment is the clock.

Every training loop steps an environment once per update. The training environment therefore detects the first update,
measures windows of steps, and blocks inside a step while another process is measured.
"""

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import gymnasium as gym

from benchmarks.workloads import WARMUP_STEPS

LINK = "BENCHMARK_LINK"  # environment variable with the file descriptor of the socket to the runner
SETTLING_STEPS = 100  # steps after the first update that are not measured, for compilers
LEAD_IN = 0.2  # seconds at the start of a window that are not measured, for caches and clock frequency


class Stopwatch:
    """Report progress to the runner and measure windows on request.

    The event "update" is sent after the first update and "ready" after `SETTLING_STEPS` more steps. After that, each
    number received from the runner is the length of one window in seconds. The process exits when the runner closes the
    socket.

    Args:
        link: The socket to the runner.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link.makefile("rw")
        self._updates: Callable[[], int] = lambda: 0
        self._transition_bytes: float | None = None
        self._steps_per_batch = 1
        self._has_updated = False
        self._script = self._write_script()

    def watch(
        self, updates: Callable[[], int], transition_bytes: float | None, steps_per_batch: int | None = None
    ) -> None:
        """Register what only the measured loop knows.

        Args:
            updates: Returns the number of critic updates so far.
            transition_bytes: Bytes per transition in the replay buffer; None without a buffer.
            steps_per_batch: Environment steps that the loop takes before it makes as many updates. A window covers a
                multiple of it.
        """
        self._updates, self._transition_bytes = updates, transition_bytes
        self._steps_per_batch = steps_per_batch or 1

    def tick(self) -> None:
        """Advance by one environment step; called before each step."""
        next(self._script)

    def report_first_update(self) -> None:
        """Send "update" unless it was sent; needed only by loops that make several updates between two steps."""
        if not self._has_updated:
            self._has_updated = True
            self._send("update")

    def _write_script(self) -> Iterator[None]:
        """Yield once per step, and talk to the runner in between."""
        for _ in range(WARMUP_STEPS + 1):
            yield
        self.report_first_update()
        for _ in range(SETTLING_STEPS):
            yield
        self._send("ready", transition_bytes=self._transition_bytes)
        while seconds := self._receive():
            yield from self._run_for(LEAD_IN)
            start, updates = time.perf_counter(), self._updates()
            steps = yield from self._run_for(seconds, self._steps_per_batch)
            self._send(
                "window",
                steps=steps,
                seconds=time.perf_counter() - start,
                updates=self._updates() - updates,
                peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            )
        os._exit(0)  # the training loop may be endless

    def _run_for(self, seconds: float, multiple: int = 1) -> Any:
        """Yield until the time is over and the number of steps is a multiple; return that number."""
        steps, end = 0, time.perf_counter() + seconds
        while steps % multiple or time.perf_counter() < end:
            steps += 1
            yield
        return steps

    def _send(self, event: str, **numbers: float | None) -> None:
        self._link.write(json.dumps({"event": event, **numbers}) + "\n")
        self._link.flush()

    def _receive(self) -> float:
        return float(self._link.readline() or 0)


@cache
def stopwatch() -> Stopwatch:
    """Return the stopwatch of this process."""
    return Stopwatch(socket.socket(fileno=int(os.environ[LINK])))


class Clock(gym.Wrapper[Any, Any, Any, Any]):
    """Advance the stopwatch at every environment step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Advance the stopwatch, then step the environment."""
        stopwatch().tick()
        return self.env.step(action)
