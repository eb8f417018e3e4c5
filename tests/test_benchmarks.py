"""The benchmarks: their arithmetic against numbers worked out by hand, and a race of our own loops."""

import argparse
import json
import math
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import clock, results
from benchmarks.aggregate import bootstrap_interval, interquartile_mean, mean_and_std
from benchmarks.car_frames import report
from benchmarks.contenders import bare, floor
from benchmarks.contenders.bare import parse
from benchmarks.profile import REST, UPDATE, Timer, profile
from benchmarks.profile import table as profile_table
from benchmarks.race import Contender, Measured, race
from benchmarks.results import Run
from benchmarks.speed import CONTENDERS, choose, interpreter, table, variants, write
from benchmarks.workloads import WARMUP_STEPS, Workload
from td3_lightning.run_logger import MetricsFile

ROOT = Path(__file__).parent.parent


def test_every_command_of_the_readmes_can_be_read() -> None:
    text = "".join((ROOT / name).read_text() for name in ("README.md", "benchmarks/README.md"))
    commands = re.findall(r"^python -m benchmarks\.(.*)$", text, re.MULTILINE)
    assert {line.split()[0] for line in commands} == {"speed", "profile", "results", "car_frames"}
    for module, *words in map(shlex.split, commands):
        here = [sys.executable if word.endswith("/python") else word for word in words]
        import_module(f"benchmarks.{module}").parse(here)


# Numbers over seeds.


def test_the_interquartile_mean_leaves_a_quarter_out_at_each_end() -> None:
    assert interquartile_mean([7]) == 7
    assert interquartile_mean([1, 2, 6]) == 3  # a quarter of 3 is none
    assert interquartile_mean([100, 2, 3, -50]) == 2.5
    assert interquartile_mean([1, 2, 3, 4, 1000]) == 3
    assert interquartile_mean(range(8)) == (2 + 3 + 4 + 5) / 4
    assert interquartile_mean([0, 0, 10, 20, 30, 30, 30, 99, 99]) == (10 + 20 + 30 + 30 + 30) / 5


def test_the_interval_is_that_of_redrawn_runs() -> None:
    assert bootstrap_interval([5, 5, 5, 5, 5]) == (5, 5)
    # Five draws of 0 and 1 have the interquartile mean 1 where at least four are 1: 5 * 0.4^4 * 0.6 + 0.4^5 = 8.7% of
    # the time, and 0 in 33.7%, both more than 2.5%.
    assert bootstrap_interval([0, 1, 0, 1, 0]) == (0, 1)
    # The quarter-trimmed mean of n uniform draws from [0, 100] has the variance (winsorised) 416.7 / 0.5^2 / n.
    low, high = bootstrap_interval(np.arange(100))
    assert low == pytest.approx(49.5 - 1.96 * math.sqrt(16.67), abs=0.5)
    assert high == pytest.approx(49.5 + 1.96 * math.sqrt(16.67), abs=0.5)


def test_the_spread_is_that_of_a_sample() -> None:
    assert mean_and_std([1, 2, 3, 4]) == (2.5, math.sqrt(5 / 3))
    mean, std = mean_and_std([3])
    assert mean == 3
    assert math.isnan(std)


# Results.


def a_run(folder: Path, seed: int, *attempts: dict[int, float], exit_code: int | None = 0, seconds: float = 60) -> Run:
    for version, evaluations in enumerate(attempts):
        metrics = MetricsFile(folder / f"seed_{seed}" / f"version_{version}" / "metrics.csv")
        for step, value in evaluations.items():
            metrics.append({"env_steps": step - 1, "train/return": 0.0})
            metrics.append({"env_steps": step, results.MEAN: value})
    (folder / f"seed_{seed}").mkdir(exist_ok=True, parents=True)
    if exit_code is not None:
        record = {"exit_code": exit_code, "seconds": seconds, "last_line": "the reward is not finite"}
        (folder / f"seed_{seed}" / "run.json").write_text(json.dumps(record))
    return Run(seed, folder / f"seed_{seed}")


def test_an_attempt_counts_from_where_it_went_on(tmp_path: Path) -> None:
    run = a_run(tmp_path, 1, {100: 1, 200: 2, 300: 3}, {200: 2.5, 300: 3.5}, {400: 4})
    assert run.evaluations.tolist() == [[100, 1], [200, 2.5], [300, 3.5], [400, 4]]
    many = a_run(tmp_path, 2, *({100 * n: n} for n in range(1, 13)))
    assert many.evaluations[:, 1].tolist() == list(range(1, 13))  # version_10 comes after version_9


def test_the_table_has_every_seed_and_the_summary_those_that_ended(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path, 1, {100: 10, 200: 30, 300: 20}, seconds=3723),
        a_run(tmp_path, 2, {100: 20, 200: 40}, exit_code=1),
        a_run(tmp_path, 3, {100: 1000}, exit_code=143),
        Run(4, tmp_path / "seed_4"),
    ]
    rows = results.table(runs).splitlines()[2:]
    assert rows == [
        "| 1 | 20.00 | 30.00 | 200 | 300 | 1:02:03 |  |",
        "| 2 | 40.00 | 40.00 | 200 | 200 | 0:01:00 | failed: the reward is not finite |",
        "| 3 | 1,000.00 | 1,000.00 | 100 | 100 | 0:01:00 | unfinished |",
        "| 4 | - | - | - | - | 0:00:00 | not begun |",
    ]
    text = results.summary(runs)
    assert "Over 2 of 4 seeds" in text
    assert "final: 30.00 ± 14.14" in text
    assert "maximum: 35.00 ± 7.07" in text
    assert "maximum of the mean curve, which the TD3 paper reports: 35.00 at 200" in text
    assert "in none of these: 3, 4" in text
    assert "interquartile" not in text
    assert results.summary(runs[:1]).splitlines()[1] == "- final: 20.00"
    assert results.summary(runs[2:]) == "None of 2 seeds has ended with an evaluation."


def test_from_five_seeds_on_there_is_an_interval(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, seed, {100: value}) for seed, value in enumerate([1.0, 2, 3, 4, 1000])]
    assert "final: 202.00 ± 446.10; interquartile mean 3.00, 95% interval 1." in results.summary(runs)
    lines = results.draw(runs, "toy").axes[0].lines
    assert np.array(lines[-1].get_xydata()).tolist() == [[100, 202]]


STUB = """
import pathlib, sys
words = sys.argv[1:]
resumed = "--ckpt_path" in words
if resumed:
    version = pathlib.Path(words[words.index("--ckpt_path") + 1]).parent.parent
else:
    version = pathlib.Path("lightning_logs", words[words.index("--name") + 1], "version_0")
    (version / "checkpoints").mkdir(parents=True)
    (version / "checkpoints" / "last.ckpt").touch()
with open(version / "metrics.csv", "a") as file:
    file.write("200,2\\n" if resumed else "env_steps,eval/return_mean\\n100,1\\n")
print(*words)
sys.exit(0 if resumed or words[words.index("--seed_everything") + 1] == "1" else "out of luck")
"""


def test_what_was_cut_off_goes_on_and_what_is_finished_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "COMMAND", [sys.executable, "-c", STUB])
    tmp_path.joinpath("original").mkdir()
    tmp_path.joinpath("original", "toy.yaml").write_text("model: {tau: 0.2}\n")
    words = ["--config", "original/toy.yaml", "--seeds", "1", "2", "--jobs", "2", "--model.tau", "0.1"]
    assert results.main(words) == 1
    assert "failed: out of luck" in capsys.readouterr().out
    assert results.main(words) == 0
    folder = tmp_path / "lightning_logs" / "results" / "original_toy"
    first, second = ((folder / f"seed_{seed}" / "log.txt").read_text().splitlines() for seed in (1, 2))
    assert first == [
        "fit --config original/toy.yaml --model.tau 0.1 --seed_everything 1 --name results/original_toy/seed_1"
    ]
    checkpoint = "lightning_logs/results/original_toy/seed_2/version_0/checkpoints/last.ckpt"
    assert second[-1].endswith(f"--seed_everything 2 --ckpt_path {checkpoint}")
    assert Run(2, folder / "seed_2").evaluations.tolist() == [[100, 1], [200, 2]]
    assert (folder / "results.png").stat().st_size > 1000
    text = (folder / "results.md").read_text()
    assert "| 2 | 2.00 | 2.00 | 200 | 200 |" in text
    assert text.startswith("# original/toy.yaml --model.tau 0.1 on 2 seeds\n")


def test_runs_of_other_settings_are_not_taken_for_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "COMMAND", [sys.executable, "-c", STUB])
    config, words = tmp_path / "toy.yaml", ["--config", "toy.yaml", "--seeds", "1"]
    config.write_text("model: {tau: 0.2}\n")
    assert results.main(words) == 0
    assert results.main([*words, "--model.tau", "0.1"]) == 2
    assert "holds runs of toy.yaml with the flags ''" in capsys.readouterr().err
    config.write_text("model: {tau: 0.3}\n")
    assert results.main(words) == 2
    assert "holds runs of toy.yaml as it was then" in capsys.readouterr().err
    assert results.main(["--config", "none.yaml", "--seeds", "1"]) == 2
    config.write_text("model: {tau: 0.2}\n")
    assert results.main([*words, "2"]) == 1  # another seed, which fails


# Speed.


def test_ratios_are_taken_window_by_window() -> None:
    ours = Measured("ours", 3.0, 52.0, [100.0, 50.0, 120.0], 4e8)
    rival = Measured("rival", 2.5, 80.4, [50.0, 50.0, 40.0], 3e8)
    products = Measured("floor", 9.0, None, [200.0, 200.0, 200.0], 1e8)
    assert table([ours, rival, products]).splitlines()[2:] == [
        "| floor | 200 | 0.50 (0.25 to 0.60) |  | 100 |  |",
        "| ours | 100 | 1.00 (1.00 to 1.00) | 3.0 | 400 | 52 |",
        "| rival | 50 | 2.00 (1.00 to 3.00) | 2.5 | 300 | 80 |",
    ]


def test_the_numbers_are_written_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"C": [Measured("ours", 3.0, 84.0, [100.0]), Measured("floor", 9.0, None, [200.0])]}
    write(tmp_path / "new" / "speed", {"machine": "a toy"}, measured)
    text = (tmp_path / "new" / "speed.md").read_text()
    assert text == capsys.readouterr().out.strip("\n") + "\n"
    assert "- machine: a toy\n" in text
    assert "## C: the car, nets 512-256, batch 512\n" in text
    assert table(measured["C"]) in text
    numbers = json.loads((tmp_path / "new" / "speed.json").read_text())
    assert numbers["conditions"] == {"machine": "a toy"}
    assert [one["steps_per_second"] for one in numbers["measured"]["C"]] == [[100.0], [200.0]]
    assert numbers["measured"]["C"][1]["transition_bytes"] is None


def test_a_variant_is_ours_with_flags_and_bare_where_it_can_be() -> None:
    made = variants(["fast=--model.tau 0.01 --data.batch_size=128", "bf16=--trainer.precision bf16-mixed"])
    assert list(made) == ["ours:fast", "bare:fast", "ours:bf16"]
    flags = list(made["bare:fast"].flags)
    assert flags == ["--model.tau", "0.01", "--data.batch_size=128"]
    assert parse(flags) == {"model": {"tau": 0.01}, "data": {"batch_size": 128}}


def test_who_is_not_installed_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {**CONTENDERS, "absent": Contender("absent", "absent", ("no_such_package",))}
    assert [one.title for one in choose(["absent", "ours"], known, sys.executable)] == ["td3_lightning"]
    assert f"Not installed in {sys.executable} and left out: absent;" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="sb4 is no contender"):
        choose(["sb4"], known, sys.executable)


class Enough(BaseException):  # which nothing in between catches
    """Ends a loop that knows no end."""


class Ticks:
    """Stands in for the stopwatch, and lets a loop go so far."""

    def __init__(self, most: int) -> None:
        self.ticks, self.most = 0, most

    def watch(self, updates: Callable[[], int], transition_bytes: float | None) -> None:
        self.updates, self.transition_bytes = updates, transition_bytes

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks > self.most:
            raise Enough


TOY = Workload("toy", "Pendulum-v1", (5, 7), 11)


def test_an_interpreter_is_found_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter("./python") == str(tmp_path / "python")  # a virtual environment is known by its link
    with pytest.raises(argparse.ArgumentTypeError, match="absent is no program; give the path"):
        interpreter("absent")


def test_the_floor_counts_every_product_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    ticks = Ticks(WARMUP_STEPS + 2)
    monkeypatch.setattr(floor, "stopwatch", lambda: ticks)
    monkeypatch.setattr(torch, "mm", lambda left, right, out: sizes.append(left.numel() * right.shape[1]))
    with pytest.raises(Enough):
        floor.train(TOY, [])
    critic, actor = [4 * 5, 5 * 7, 7 * 1], [3 * 5, 5 * 7, 7 * 1]
    # Target actor and target twins forward; twins forward, back to their weights, and back to all but their inputs.
    always = sum(actor) + 2 * (3 * sum(critic) + sum(critic[1:]))
    # Once in two updates: the actor forward, one critic forward and back to its action, the actor back.
    delayed = sum(actor) + 2 * sum(critic) + sum(actor) + sum(actor[1:])
    assert sum(sizes) == 11 * (2 * always + delayed)


def test_the_bare_loop_makes_one_update_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(WARMUP_STEPS + 20)
    monkeypatch.setattr(bare, "stopwatch", lambda: ticks)
    monkeypatch.setattr(clock, "stopwatch", lambda: ticks)
    with pytest.raises(Enough):
        bare.train(TOY, ["--model.policy_freq", "3", "--trainer.precision", "bf16"])
    assert ticks.updates() == 20
    assert ticks.transition_bytes == 4 * (3 + 1 + 2) + 2


def test_the_stopwatch_counts_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    monkeypatch.setattr(clock, "LEAD_IN", 0.0)
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
        assert done == WARMUP_STEPS + 1 + clock.SETTLING_STEPS  # it sleeps in the next step
        runner.write("0.05\n")
        runner.flush()
        window = json.loads(runner.readline())
    thread.join(timeout=5)
    assert window["steps"] == window["updates"] > 10
    assert 0.05 <= window["seconds"] < 0.5
    assert not thread.is_alive()


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


def test_contenders_take_turns_and_who_fails_is_left_out(tmp_path: Path) -> None:
    python, turns, said = tmp_path / "python", tmp_path / "turns", []
    python.write_text(STAND_IN.format(python=sys.executable, turns=turns))
    python.chmod(0o755)
    contenders = {Contender(f"the {name}", name): str(python) for name in ("one", "broken", "idle", "other")}
    one, other = race(contenders, "L", windows=3, seconds=0.5, threads=1, say=said.append)
    assert (one.title, one.steps_per_second, one.peak_memory) == ("the one", [10, 5, 10 / 3], 5)
    assert (other.title, other.steps_per_second, other.transition_bytes) == ("the other", [10, 5, 10 / 3], 8)
    turn = [line.split()[0] for line in turns.read_text().splitlines()]
    assert turn == ["one", "idle", "other", "other", "one", "one", "other"]
    assert turns.read_text().splitlines()[0] == "one L 0.5"
    assert "the broken is left out: no such thing" in said
    assert "the idle is left out: made 0 updates in 10 steps, not one for each" in said


def test_our_loop_races() -> None:
    (ours,) = race({CONTENDERS["ours"]: sys.executable}, "L", windows=1, seconds=0.1, threads=1, say=lambda _: None)
    assert len(ours.steps_per_second) == 1
    assert min(ours.steps_per_second) > 1
    assert ours.seconds_to_first_update > 0.1
    assert ours.transition_bytes == 50
    assert ours.peak_memory > 1e8


# The profile, and the car.


def test_time_counts_for_the_inner_part_alone() -> None:
    timer = Timer()
    with timer.within("outer"):
        time.sleep(0.02)
        with timer.within("inner"):
            time.sleep(0.05)
    seconds = timer.read()
    assert seconds["inner"] == pytest.approx(0.05, abs=0.015)
    assert seconds["outer"] == pytest.approx(0.02, abs=0.015)
    assert seconds[REST] < 0.01
    assert timer.read()[REST] < 0.01
    assert profile_table({"L": {"acting": 30.0, REST: 10.0}}).splitlines()[2:] == [
        "| acting | 30 (75.0%) |",
        f"| {REST} | 10 (25.0%) |",
        "| a step | 40 |",
    ]


@pytest.mark.parametrize(("gradients", "apart"), [("by hand", False), ("by hand", True), ("autograd", False)])
def test_a_profile_covers_the_whole_step(gradients: str, apart: bool) -> None:
    begun = time.perf_counter()
    parts = profile(TOY, 50, ["--model.gradients", gradients], apart)
    elapsed = (time.perf_counter() - begun) * 1e6
    inner = ["target", "critics: backward", "actor: backward"]
    passes = [f"{net}: {'gradients' if gradients == 'by hand' else 'forward'}" for net in ("critics", "actor")]
    for part in ("environment", "acting", "sampling", *passes, "actor: Adam", UPDATE, REST):
        assert parts[part] > 0, part
    assert all((part in parts) is (apart or gradients == "autograd") for part in inner)
    assert sum(parts.values()) * 50 < elapsed


def test_the_cars_ratio_is_taken_window_by_window() -> None:
    assert report([(4000.0, 100.0), (3000.0, 60.0), (1000.0, 50.0)]).splitlines()[-1] == (
        "| 3,000 frames/s | 60 frames/s | 40.0 (20.0 to 50.0) |"
    )
