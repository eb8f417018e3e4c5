"""Test the benchmark that attributes the time of a step to the parts of td3_lightning, also to those of `fast`."""

import time
from types import SimpleNamespace

import pytest

from benchmarks.profile import REST, UPDATE, Timer, parse, profile
from benchmarks.profile import table as profile_table
from tests.test_benchmarks import TOY, readme_commands


def test_commands_of_the_readmes_parse() -> None:
    commands = [words for module, words in readme_commands() if module == "profile"]
    assert commands
    for words in commands:
        parse(words)


def test_nested_time_counts_for_the_inner_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0])  # the timer, four ends of parts, two calls of read
    monkeypatch.setattr("benchmarks.profile.time", SimpleNamespace(perf_counter=lambda: next(reads)))
    timer = Timer()
    with timer.within("outer"), timer.within("inner"):
        pass
    assert timer.read() == {REST: 1.0 + 16.0, "outer": 2.0 + 8.0, "inner": 4.0}
    assert timer.read() == {REST: 32.0}
    assert profile_table({"L": {"acting": 30.0, REST: 10.0}}).splitlines()[2:] == [
        "| acting | 30 (75.0%) |",
        f"| {REST} | 10 (25.0%) |",
        "| whole step | 40 |",
    ]


@pytest.mark.parametrize(("gradients", "apart"), [("manual", False), ("manual", True), ("autograd", False)])
def test_profile_covers_the_whole_step(gradients: str, apart: bool) -> None:
    start = time.perf_counter()
    parts = profile(TOY, 50, ["--model.gradients", gradients], apart)
    elapsed = (time.perf_counter() - start) * 1e6
    inner = ["target", "critics: backward", "actor: backward"]
    passes = [f"{net}: {'gradients' if gradients == 'manual' else 'forward'}" for net in ("critics", "actor")]
    for part in ("environment", "acting", "sampling", *passes, "actor: Adam", UPDATE, REST):
        assert parts[part] > 0, part
    assert all((part in parts) is (apart or gradients == "autograd") for part in inner)
    assert sum(parts.values()) * 50 < elapsed
