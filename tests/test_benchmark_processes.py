"""Tests of the processes that are measured in turn."""

import json
import socket
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import clock
from benchmarks.interleaved import Baseline, environment, measure
from benchmarks.speed import BASELINES, variants
from benchmarks.workloads import WARMUP_STEPS


def test_stopwatch_counts_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    reads = count()  # the clock advances by a second each time that it is read
    monkeypatch.setattr(clock, "LEAD_IN", 0.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: float(next(reads))))
    monkeypatch.setattr(clock.os, "_exit", sys.exit)
    stopwatch, done = clock.Stopwatch(there), 0
    stopwatch.watch(lambda: done, 8.0)

    def loop() -> None:
        nonlocal done
        with suppress(SystemExit):
            while True:
                stopwatch.tick()
                done += 1

    thread = threading.Thread(target=loop)
    thread.start()
    with here, here.makefile("rw") as runner:
        assert json.loads(runner.readline()) == {"event": "update"}
        assert json.loads(runner.readline()) == {"event": "ready", "transition_bytes": 8.0}
        assert done == WARMUP_STEPS + 1 + clock.SETTLING_STEPS  # it blocks in the next step
        runner.write("50\n")
        runner.flush()
        window = json.loads(runner.readline())
    thread.join(timeout=5)
    assert window["steps"] == window["updates"] == 49
    assert window["seconds"] == 52  # from the start to the end: the reads of 49 steps and of the limits
    assert not thread.is_alive()


def test_gpu_is_visible_only_to_those_that_choose_it() -> None:
    on_gpu = variants(["gpu=--trainer.accelerator gpu"])["ours:gpu"]
    assert [each.uses_gpu for each in (on_gpu, BASELINES["sb3-gpu"], BASELINES["ours"])] == [True, True, False]
    assert "CUDA_VISIBLE_DEVICES" not in environment(1, uses_gpu=True)
    assert environment(1, uses_gpu=False)["CUDA_VISIBLE_DEVICES"] == ""


STAND_IN = """#!{python}
import json, os, pathlib, socket, sys
link = socket.socket(fileno=int(os.environ["BENCHMARK_LINK"])).makefile("rw")

def say(event, **numbers):
    link.write(json.dumps(dict(event=event, **numbers)) + "\\n")
    link.flush()

module, workload = sys.argv[3:5]
print("no such thing")
if module == "broken":
    sys.exit(1)
say("update")
say("ready", transition_bytes=8)
for number, line in enumerate(link):
    with open("{turns}", "a") as file:
        print(module, workload, float(line), file=file)
    say("window", steps=10, seconds=number + 1, updates=0 if module == "idle" else 10, peak_memory=5)
"""


def test_baselines_take_turns_and_failures_are_skipped(tmp_path: Path) -> None:
    python, turns, said = tmp_path / "python", tmp_path / "turns", []
    python.write_text(STAND_IN.format(python=sys.executable, turns=turns))
    python.chmod(0o755)
    baselines = {Baseline(f"the {name}", name): str(python) for name in ("one", "broken", "idle", "other")}
    one, other = measure(baselines, "L", windows=3, seconds=0.5, threads=1, report=said.append)
    assert (one.title, one.steps_per_second, one.peak_memory) == ("the one", [10, 5, 10 / 3], 5)
    assert (other.title, other.steps_per_second, other.transition_bytes) == ("the other", [10, 5, 10 / 3], 8)
    turn = [line.split()[0] for line in turns.read_text().splitlines()]
    assert turn == ["one", "idle", "other", "other", "one", "one", "other"]
    assert turns.read_text().splitlines()[0] == "one L 0.5"
    assert "Skipping the broken: no such thing" in said
    assert "Skipping the idle: expected one update per step, got 0 in 10 steps" in said


def test_variant_is_measured() -> None:
    pytest.importorskip("td3_lightning.fast.adam")
    (ours,) = measure({BASELINES["without-adam"]: sys.executable}, "L-LN", 1, 0.1, threads=1, report=lambda _: None)
    assert len(ours.steps_per_second) == 1
    assert min(ours.steps_per_second) > 1
    assert ours.seconds_to_first_update > 0.1
    assert ours.transition_bytes == 52
    assert ours.peak_memory > 1e8
