"""Tests of the benchmarks: arithmetic against known numbers, and a measurement of our own loops."""

import argparse
import json
import math
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import clock, results, update
from benchmarks.aggregate import bootstrap_interval, interquartile_mean, mean_and_std
from benchmarks.baselines import floor, ours_loop
from benchmarks.baselines.cleanrl import Agent
from benchmarks.baselines.cleanrl_tuned import TunedAgent
from benchmarks.baselines.ours_loop import parse
from benchmarks.car_frames import report
from benchmarks.interleaved import Baseline, Measurement, measure
from benchmarks.machine import commit
from benchmarks.profile import REST, UPDATE, Timer, profile
from benchmarks.profile import table as profile_table
from benchmarks.records import Records, comparison_table
from benchmarks.results import Run
from benchmarks.speed import BASELINES, choose, interpreter, supported, variants
from benchmarks.workloads import WARMUP_STEPS, WORKLOADS, Workload
from td3_lightning.run_logger import MetricsFile

ROOT = Path(__file__).parent.parent
TOY = Workload("toy", "Pendulum-v1", (5, 7), 11)


def test_every_command_of_the_readmes_parses() -> None:
    text = "".join((ROOT / name).read_text() for name in ("README.md", "benchmarks/README.md"))
    commands = re.findall(r"^python -m benchmarks\.(.*)$", text, re.MULTILINE)
    assert {line.split()[0] for line in commands} == {"speed", "update", "profile", "results", "car_frames"}
    for module, *words in map(shlex.split, commands):
        here = [sys.executable if word.endswith("/python") else word for word in words]
        import_module(f"benchmarks.{module}").parse(here)


# Statistics over seeds.


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert interquartile_mean([7]) == 7
    assert interquartile_mean([1, 2, 6]) == 3  # a quarter of 3 is none
    assert interquartile_mean([100, 2, 3, -50]) == 2.5
    assert interquartile_mean([1, 2, 3, 4, 1000]) == 3
    assert interquartile_mean(range(8)) == (2 + 3 + 4 + 5) / 4
    assert interquartile_mean([0, 0, 10, 20, 30, 30, 30, 99, 99]) == (10 + 20 + 30 + 30 + 30) / 5


def test_interval_is_a_bootstrap_interval() -> None:
    assert bootstrap_interval([5, 5, 5, 5, 5]) == (5, 5)
    # Five draws of 0 and 1 have the interquartile mean 1 if at least four are 1: 5 * 0.4^4 * 0.6 + 0.4^5 = 8.7% of
    # the time, and 0 in 33.7%, both more than 2.5%.
    assert bootstrap_interval([0, 1, 0, 1, 0]) == (0, 1)
    # The quarter-trimmed mean of n uniform draws from [0, 100] has the variance (winsorised) 416.7 / 0.5^2 / n.
    low, high = bootstrap_interval(np.arange(100))
    assert low == pytest.approx(49.5 - 1.96 * math.sqrt(16.67), abs=0.5)
    assert high == pytest.approx(49.5 + 1.96 * math.sqrt(16.67), abs=0.5)


def test_spread_is_the_sample_standard_deviation() -> None:
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


def test_resumed_attempt_overrides_earlier_evaluations(tmp_path: Path) -> None:
    run = a_run(tmp_path, 1, {100: 1, 200: 2, 300: 3}, {200: 2.5, 300: 3.5}, {400: 4})
    assert run.evaluations.tolist() == [[100, 1], [200, 2.5], [300, 3.5], [400, 4]]
    many = a_run(tmp_path, 2, *({100 * n: n} for n in range(1, 13)))
    assert many.evaluations[:, 1].tolist() == list(range(1, 13))  # version_10 comes after version_9


def test_table_has_every_seed_and_summary_the_ended_ones(tmp_path: Path) -> None:
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
        "| 4 | - | - | - | - | 0:00:00 | not started |",
    ]
    text = results.summary(runs)
    assert "Over 2 of 4 seeds" in text
    assert "final: 30.00 ± 14.14" in text
    assert "maximum: 35.00 ± 7.07" in text
    assert "maximum of the mean curve, which the TD3 paper reports: 35.00 at 200" in text
    assert "not counted: 3, 4" in text
    assert "interquartile" not in text
    assert results.summary(runs[:1]).splitlines()[1] == "- final: 20.00"
    assert results.summary(runs[2:]) == "No result yet: none of 2 seeds has ended with an evaluation."


def test_five_seeds_have_an_interval(tmp_path: Path) -> None:
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


def test_unfinished_runs_resume_and_finished_runs_are_kept(
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


def test_runs_with_other_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "COMMAND", [sys.executable, "-c", STUB])
    config, words = tmp_path / "toy.yaml", ["--config", "toy.yaml", "--seeds", "1"]
    config.write_text("model: {tau: 0.2}\n")
    assert results.main(words) == 0
    assert results.main([*words, "--model.tau", "0.1"]) == 2
    assert "must have the flags '', got the flags '--model.tau 0.1'. Move the folder away" in capsys.readouterr().err
    config.write_text("model: {tau: 0.3}\n")
    assert results.main(words) == 2
    assert "must have the unchanged toy.yaml, got another version of it. Move the folder" in capsys.readouterr().err
    assert results.main(["--config", "none.yaml", "--seeds", "1"]) == 2
    config.write_text("model: {tau: 0.2}\n")
    assert results.main([*words, "2"]) == 1  # the new seed fails


# Speed.


def measurement(title: str, *steps_per_second: float, transition_bytes: float | None = 52.0) -> Measurement:
    return Measurement(title, 3.0, transition_bytes, list(steps_per_second), 4e8)


def test_ratios_are_taken_window_by_window() -> None:
    ours = measurement("td3_lightning", 100.0, 50.0, 120.0)
    other = measurement("other", 50.0, 50.0, 40.0, transition_bytes=80.4)
    products = measurement("floor", 200.0, 200.0, 200.0, transition_bytes=None)
    assert comparison_table([ours, other, products]).splitlines()[2:] == [
        "| floor | 200 | 0.50 (0.25 to 0.60) |  | 400 |  |",
        "| td3_lightning | 100 | 1.00 (1.00 to 1.00) | 3.0 | 400 | 52 |",
        "| other | 50 | 2.00 (1.00 to 3.00) | 3.0 | 400 | 80 |",
    ]
    assert comparison_table([other]).splitlines()[2] == "| other | 50 |  | 3.0 | 400 | 80 |"
    assert comparison_table([]) == "No implementation was measured."


def test_repeated_runs_are_rows_of_one_file(tmp_path: Path) -> None:
    first, second = measurement("td3_lightning", 100.0), measurement("td3_lightning", 300.0)
    for commit_, each in (("aaa", first), ("bbb", second)):
        records = Records(tmp_path / "new" / "epyc")
        records.add({"commit": commit_}, {"C": [each, measurement("floor", 600.0, transition_bytes=None)]})
        records.write()
    content = json.loads((tmp_path / "new" / "epyc.json").read_text())
    assert content["runs"] == [{"run": 1, "commit": "aaa"}, {"run": 2, "commit": "bbb"}]
    assert [(row["run"], row["workload"], row["steps_per_second"]) for row in content["rows"]] == [
        *((1, "C", [100.0]), (1, "C", [600.0]), (2, "C", [300.0]), (2, "C", [600.0])),
    ]
    text = (tmp_path / "new" / "epyc.md").read_text()
    assert "## C: car, networks 512-256, batch 512\n" in text
    assert [line for line in text.splitlines() if line.startswith("| td3")] == [
        "| td3_lightning | 1 | aaa | 100 | 1.00 (1.00 to 1.00) | 3.0 | 400 | 52 |",
        "| td3_lightning | 2 | bbb | 300 | 1.00 (1.00 to 1.00) | 3.0 | 400 | 52 |",
    ]


@pytest.mark.parametrize("path", sorted(ROOT.glob("benchmarks/results/*.json")), ids=lambda path: path.stem)
def test_published_tables_follow_from_their_rows(path: Path) -> None:
    records = Records(path)
    assert path.with_suffix(".md").read_text() == records.markdown()
    assert {row["run"] for row in records.rows} == {run["run"] for run in records.runs}
    assert all(run["date"] and run["cpu"] and run["command"] for run in records.runs)


def test_commit_is_named() -> None:
    assert re.fullmatch(r"([0-9a-f]{7,40}(-dirty)?)?", commit())


def test_variant_adds_td3_lightning_with_flags() -> None:
    made = variants(["fast=--model.tau 0.01 --data.batch_size=128", "bf16=--trainer.precision bf16-mixed"])
    assert list(made) == ["ours:fast", "ours-loop:fast", "ours:bf16"]
    flags = list(made["ours-loop:fast"].flags)
    assert flags == ["--model.tau", "0.01", "--data.batch_size=128"]
    assert parse(flags) == {"model": {"tau": 0.01}, "data": {"batch_size": 128}}


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = {**BASELINES, "absent": Baseline("absent", "absent", ("no_such_package",))}
    assert [one.title for one in choose(["absent", "ours"], known, sys.executable)] == ["td3_lightning"]
    assert f"Skipping absent: no_such_package must be installed in {sys.executable}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"--baselines must be any of ours, .*, got sb4"):
        choose(["sb4"], known, sys.executable)


def test_baselines_without_layer_norm_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = {BASELINES[name]: sys.executable for name in ("ours", "sb3", "cleanrl-tuned")}
    assert list(supported(chosen, "L")) == list(chosen)
    assert [one.module for one in supported(chosen, "L-LN")] == ["ours", "cleanrl_tuned"]
    assert "L-LN  Skipping Stable-Baselines3: no LayerNorm." in capsys.readouterr().out


@pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES.keys())
def test_every_baseline_has_a_file(baseline: Baseline) -> None:
    assert (ROOT / "benchmarks" / "baselines" / f"{baseline.module}.py").is_file()


@pytest.mark.parametrize("layer_norm", [False, True])
def test_tuned_loop_makes_the_same_updates(layer_norm: bool) -> None:
    workload = TOY.with_layer_norm() if layer_norm else TOY
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
    agents = []
    for agent_class in (Agent, TunedAgent):
        torch.manual_seed(0)
        agents.append(agent_class(3, low, high, workload))
        for seed in range(6):
            agents[-1].update(update.random_batch(workload, 3, low, high, seed))
    plain, tuned = (list(agent.pairs) for agent in agents)
    for ours, theirs in zip(tuned, plain, strict=True):
        for network, expected in zip(ours, theirs, strict=True):
            for name, weight in expected.named_parameters():
                torch.testing.assert_close(network.get_parameter(name), weight, rtol=1e-5, atol=1e-7)
    assert any("norm1" in name for name, _ in agents[0].actor.named_parameters()) is layer_norm
    assert agents[0].updates == agents[1].updates == 6
    assert all(weight.requires_grad for weight in agents[1].qf1.parameters())


def test_tuned_process_flushes_denormals() -> None:
    code = (
        "import torch; from benchmarks.baselines.process import tune_process\n"
        "tiny = torch.tensor([1e-39])\n"
        "before = (tiny * 0.5).item(); tune_process(); print(before > 0, (tiny * 0.5).item())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["True", "0.0"]


def test_update_takes_turns_and_skips_the_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    now = 0.0

    def advance(name: str, seconds: float, number: int) -> None:
        nonlocal now
        calls.append((name, number))
        now += seconds if number >= 2 else 100.0

    monkeypatch.setattr(update.time, "perf_counter", lambda: now)
    seconds = update.measure(
        {update.AUTOGRAD: partial(advance, "ours", 0.5), update.TUNED: partial(advance, "tuned", 1.0)}, 2, 2
    )
    assert [name for name, _ in calls[::2]] == ["ours", "tuned", "tuned", "ours", "ours", "tuned"]
    assert [number for name, number in calls if name == "tuned"] == [0, 1, 2, 3, 4, 5]
    assert seconds == {update.AUTOGRAD: [0.5, 0.5], update.TUNED: [1.0, 1.0]}
    assert update.table(seconds).splitlines()[2:] == [
        "| td3_lightning, autograd | 500.000 | 500.000 | 2.00 (2.00 to 2.00) | 1.00 (1.00 to 1.00) |",
        f"| {update.TUNED} | 1000.000 | 1000.000 | 1.00 (1.00 to 1.00) | 0.50 (0.50 to 0.50) |",
    ]


@pytest.mark.parametrize("layer_norm", [False, True])
def test_update_runs_every_implementation(layer_norm: bool) -> None:
    workload = TOY.with_layer_norm() if layer_norm else TOY
    titles = ["td3_lightning, by hand", "td3_lightning, autograd", "CleanRL-style loop, tuned"]
    assert [title.replace("manual", "by hand") for title in update.implementations(workload)] == titles
    seconds = update.measure(update.implementations(workload), 1, 4)
    assert all(len(each) == 1 and each[0] > 0 for each in seconds.values())


def test_update_prints_machine_and_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(WORKLOADS, "L", TOY)
    monkeypatch.setattr(update, "limit_cores", lambda threads: threads)
    monkeypatch.setattr(update, "tune_process", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    assert update.main(["--workloads", "L", "--threads", "1", "--blocks", "1", "--updates", "2"]) == 0
    printed = capsys.readouterr().out
    for name in ("date", "commit", "command", "cpu", "load", "versions", "protocol"):
        assert f"- {name}: " in printed
    assert "1 of " in printed
    assert len([line for line in printed.splitlines() if line.startswith(("| td3_lightning", "| CleanRL"))]) == 3


class Enough(BaseException):  # no handler in between catches it
    """Ends an endless loop."""


class Ticks:
    """Replaces the stopwatch and ends the loop after a number of steps."""

    def __init__(self, most: int) -> None:
        self.ticks, self.most = 0, most

    def watch(self, updates: Callable[[], int], transition_bytes: float | None, steps_per_batch: int = 1) -> None:
        self.updates, self.transition_bytes = updates, transition_bytes

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks > self.most:
            raise Enough


def test_interpreter_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter("./python") == str(tmp_path / "python")  # Python finds its virtual environment through the link
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a Python interpreter, got absent\. Use the path"):
        interpreter("absent")


def test_floor_has_every_matrix_product_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    ticks = Ticks(WARMUP_STEPS + 2)
    monkeypatch.setattr(floor, "stopwatch", lambda: ticks)
    monkeypatch.setattr(torch, "mm", lambda left, right, out: sizes.append(left.numel() * right.shape[1]))
    with pytest.raises(Enough):
        floor.train(TOY, [])
    critic, actor = [4 * 5, 5 * 7, 7 * 1], [3 * 5, 5 * 7, 7 * 1]
    # Forward: target actor, target critics, critics. Backward: the critics' weights and hidden activations.
    always = sum(actor) + 2 * (3 * sum(critic) + sum(critic[1:]))
    # Every second update: actor and one critic forward, back to the action, then through the actor.
    delayed = sum(actor) + 2 * sum(critic) + sum(actor) + sum(actor[1:])
    assert sum(sizes) == 11 * (2 * always + delayed)


def test_loop_without_trainer_makes_one_update_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(WARMUP_STEPS + 20)
    monkeypatch.setattr(ours_loop, "stopwatch", lambda: ticks)
    monkeypatch.setattr(clock, "stopwatch", lambda: ticks)
    with pytest.raises(Enough):
        ours_loop.train(TOY, ["--model.policy_freq", "3", "--trainer.precision", "bf16"])
    assert ticks.updates() == 20
    assert ticks.transition_bytes == 4 * (3 + 1 + 2) + 2


def test_stopwatch_counts_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert done == WARMUP_STEPS + 1 + clock.SETTLING_STEPS  # it blocks in the next step
        runner.write("0.05\n")
        runner.flush()
        window = json.loads(runner.readline())
    thread.join(timeout=5)
    assert window["steps"] == window["updates"] > 10
    assert 0.05 <= window["seconds"] < 0.5
    assert not thread.is_alive()


def test_stopwatch_measures_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    own_end, other_end = socket.socketpair()
    monkeypatch.setattr(clock, "LEAD_IN", 0.001)
    monkeypatch.setattr(clock.os, "_exit", sys.exit)
    stopwatch, updates = clock.Stopwatch(other_end), 0
    stopwatch.watch(lambda: updates, 8.0, steps_per_batch=500)

    def loop() -> None:
        nonlocal updates
        with suppress(SystemExit):
            while True:
                for _ in range(500):
                    stopwatch.tick()
                updates += 500
                stopwatch.report_first_update()

    thread = threading.Thread(target=loop)
    thread.start()
    with own_end, own_end.makefile("rw") as runner:
        events = [json.loads(runner.readline())["event"] for _ in range(2)]
        assert events == ["update", "ready"]
        assert updates == 1000
        runner.write("0.0001\n")
        runner.flush()
        window = json.loads(runner.readline())
    thread.join(timeout=5)
    assert window["steps"] == window["updates"] > 0
    assert window["steps"] % 500 == 0


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


@pytest.mark.parametrize("name", ["ours", "cleanrl-tuned"])
def test_baseline_is_measured(name: str) -> None:
    (ours,) = measure({BASELINES[name]: sys.executable}, "L-LN", 1, 0.1, threads=1, report=lambda _: None)
    assert len(ours.steps_per_second) == 1
    assert min(ours.steps_per_second) > 1
    assert ours.seconds_to_first_update > 0.1
    assert ours.transition_bytes == {"ours": 50, "cleanrl-tuned": 80}[name]
    assert ours.peak_memory > 1e8


# The profile and the car.


def test_nested_time_counts_for_the_inner_part_only() -> None:
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
        "| whole step | 40 |",
    ]


@pytest.mark.parametrize(("gradients", "apart"), [("by hand", False), ("by hand", True), ("autograd", False)])
def test_profile_covers_the_whole_step(gradients: str, apart: bool) -> None:
    start = time.perf_counter()
    parts = profile(TOY, 50, ["--model.gradients", gradients], apart)
    elapsed = (time.perf_counter() - start) * 1e6
    inner = ["target", "critics: backward", "actor: backward"]
    passes = [f"{net}: {'gradients' if gradients == 'by hand' else 'forward'}" for net in ("critics", "actor")]
    for part in ("environment", "acting", "sampling", *passes, "actor: Adam", UPDATE, REST):
        assert parts[part] > 0, part
    assert all((part in parts) is (apart or gradients == "autograd") for part in inner)
    assert sum(parts.values()) * 50 < elapsed


def test_car_ratio_is_taken_window_by_window() -> None:
    assert report([(4000.0, 100.0), (3000.0, 60.0), (1000.0, 50.0)]).splitlines()[-1] == (
        "| 3,000 frames/s | 60 frames/s | 40.0 (20.0 to 50.0) |"
    )
