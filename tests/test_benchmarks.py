"""Tests of the benchmarks: arithmetic against known numbers, and a measurement of our own loops."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import clock, env_step, env_workers, latency, ranks, robust_laps, update
from benchmarks.arguments import interpreter
from benchmarks.baselines import floor, ours_loop
from benchmarks.baselines.cleanrl import Agent
from benchmarks.baselines.cleanrl_tuned import TunedAgent
from benchmarks.baselines.ours_loop import parse
from benchmarks.busy import Busy
from benchmarks.car_frames import report
from benchmarks.interleaved import Baseline, Measurement
from benchmarks.machine import commit
from benchmarks.records import Records, comparison_table
from benchmarks.speed import BASELINES, choose, supported, variants
from benchmarks.workloads import WARMUP_STEPS, WORKLOADS, Workload

ROOT = Path(__file__).parents[1]
TOY = Workload("toy", "Pendulum-v1", (5, 7), 11)


def readme_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the module and the words of each command in the readmes."""
    text = "".join((ROOT / name).read_text() for name in ("README.md", "benchmarks/README.md"))
    for module, *words in map(shlex.split, re.findall(r"^python -m benchmarks\.(.*)$", text, re.MULTILINE)):
        yield module, [sys.executable if word.endswith("/python") else word for word in words]


def test_every_command_of_the_readmes_parses() -> None:
    assert {module for module, _ in readme_commands()} == {
        *("speed", "update", "priorities", "car_frames", "time_to_score", "latency", "env_workers"),
    }
    for module, words in readme_commands():
        import_module(f"benchmarks.{module}").parse(words)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("speed", ["--threads", "0"]),
        ("speed", ["--windows", "0"]),
        ("speed", ["--seconds", "0"]),
        ("env_workers", ["--cores", "-1"]),
        ("env_step", ["--num_envs", "1", "0"]),
        ("update", ["--blocks", "0"]),
        ("priorities", ["--calls", "0"]),
        ("latency", ["--calls", "0"]),
        ("car_frames", ["--seconds", "nan"]),
        ("ranks", ["--minutes", "-1"]),
        ("sweep_rate", ["--workers", "0"]),
        ("time_to_score", ["--jobs", "0"]),
    ],
)
def test_amount_that_measures_nothing_is_refused(
    module: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{module}").parse(words)
    assert ended.value.code == 2
    assert re.search(rf"{words[0]}: must be (at least 1|above 0), got {words[-1]}\.$", capsys.readouterr().err.strip())


def test_input_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    td7_update = import_module("benchmarks.td7_update")
    for call, sentence in (
        (partial(td7_update.parse, [str(tmp_path)]), "AUTHOR must be a folder with TD7.py, got"),
        (partial(latency.parse, ["--runs", "absent"]), "invalid choice: 'absent'"),
        (partial(robust_laps.main, []), "the following arguments are required: FOLDER"),
    ):
        with pytest.raises(SystemExit) as ended:
            call()
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        ("priorities", "--rows 1 --calls 1", "capacity must be at least 3, got 1. Use a larger value.\n"),
        ("env_step", "--env Nope-v0", "env_id must be the id of a registered environment"),
        ("env_step", "--env CartPole-v1 --num_envs 1 --workers 0", "actions of CartPole-v1 must be a Box"),
        ("env_step", "--workers -1", "argument --workers: must be at least 0, got -1."),
    ],
)
def test_value_that_the_package_refuses_is_one_sentence(
    module: str, words: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: None)
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{module}").main(words.split())
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_update_needs_no_extra_by_default() -> None:
    assert update.parse([]).workloads == ["L", "C", "L-LN", "C-LN"]


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


@pytest.mark.parametrize("definition", ["bf16", "bf16=", "bf16=--trainer.precision 'bf16"])
def test_variant_without_flags_is_refused(definition: str) -> None:
    with pytest.raises(SystemExit, match=rf"^--variant must be NAME='FLAGS', got {re.escape(definition)}\.$"):
        variants([definition])


def test_environments_without_workers_have_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(env_step, "limit_cores", limits.append)
    monkeypatch.setattr(env_step, "describe", lambda command, threads: {})
    monkeypatch.setattr(env_step, "worker_table", lambda options: "")
    for workers in ("0", "2"):
        assert env_step.main(["--num_envs", "--workers", workers]) == 0
    assert limits == [1, 2]


def test_tables_of_steps_have_a_row_per_measurement() -> None:
    options = env_step.parse(["--env", "Pendulum-v1", "--windows", "1", "--seconds", "0.001", "--workers", "1"])
    options.num_envs, options.milliseconds = [1, 3], [0.05, 1.0]
    assert [row.split(" | ")[0] for row in env_step.cost_table(options).splitlines()[2:]] == ["| 1", "| 3"]
    rows = [row.strip("| ").split(" | ") for row in env_step.worker_table(options).splitlines()[2:]]
    assert [row[0] for row in rows] == ["0.05", "1"]
    assert 0 < float(rows[1][1].replace(",", "")) <= 1000


def test_each_rank_counts_in_the_table_of_ranks(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.csv"
    metrics.write_text(
        "env_steps,train/steps_per_second,eval/return_mean\n50,100,\n60,,-5\n80,,-9\n100,120,\n150,300,\n"
    )
    assert ranks.row("lander", "2 ranks", metrics) == ["lander", "2 ranks", "240", "120", "300", "-9.0", "-5.0"]
    options, flags = ranks.parse(["--tasks", "lander", "--minutes", "0.5", "--data.batch_size", "64"])
    assert (options.minutes, flags) == (0.5, ["--data.batch_size", "64"])


def test_rank_that_fails_has_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho env_steps > metrics.csv\necho no such thing\nexit $STATUS\n")
    python.chmod(0o755)
    monkeypatch.setattr(ranks.sys, "executable", str(python))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("STATUS", "1")
    with pytest.raises(SystemExit, match="no such thing"):
        ranks.trained_row("lander", "1 rank", 1, 1.0, [])
    assert list(tmp_path.iterdir()) == [python]
    monkeypatch.setenv("STATUS", "0")
    assert ranks.trained_row("lander", "1 rank", 1, 1.0, [])[:2] == ["lander", "1 rank"]
    assert list(tmp_path.iterdir()) == [python]


def test_speed_with_workers_is_a_share_of_the_learner() -> None:
    speeds = measurement(env_workers.ALONE, 300.0, 200.0), measurement("overlapped", 270.0, 180.0)
    assert env_workers.table({"sleep-5": list(speeds)}, [env_workers.ALONE, "absent", "overlapped"]).splitlines() == [
        "| environments | learner alone | absent | overlapped |",
        "|---|---:|---:|---:|",
        "| 2 that sleep for 5 ms per step | 250 |  | 225 (90%) |",
    ]


@pytest.mark.parametrize("sleeps", [False, True])
def test_step_of_busy_environment_takes_its_time(sleeps: bool) -> None:
    env = Busy(20, sleeps)
    start, cpu = time.perf_counter(), time.thread_time()
    env.step(None)
    assert time.perf_counter() - start > 0.0199
    assert (time.thread_time() - cpu > 0.0199) != sleeps


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


@pytest.mark.parametrize("workload", ["T", "P"])
def test_only_we_train_on_our_workloads(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = {BASELINES[name]: sys.executable for name in ("ours", "ours-loop", "sb3")}
    assert [one.module for one in supported(chosen, workload)] == ["ours"]
    assert f"{workload}  Skipping Stable-Baselines3: only td3_lightning trains" in capsys.readouterr().out


EVERY_BASELINE = BASELINES | env_workers.BASELINES


@pytest.mark.parametrize("baseline", EVERY_BASELINE.values(), ids=EVERY_BASELINE.keys())
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
    titles = ["td3_lightning, manual", "td3_lightning, autograd", "CleanRL-style loop, tuned"]
    assert list(update.implementations(workload)) == titles
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
    with pytest.raises(Enough):  # the clock is a wrapper of the environment
        ours_loop.train(TOY, ["--model.policy_freq", "3", "--trainer.precision", "bf16"])
    assert ticks.updates() == 20
    assert ticks.transition_bytes == 4 * (3 + 1 + 2) + 2


# The car.


def test_car_ratio_is_taken_window_by_window() -> None:
    assert report([(4000.0, 100.0), (3000.0, 60.0), (1000.0, 50.0)]).splitlines()[-1] == (
        "| 3,000 frames/s | 60 frames/s | 40.0 (20.0 to 50.0) |"
    )


# Latency.


def test_latency_is_measured_for_each_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(latency, "limit_cores", lambda cores: cores)
    assert latency.main(["--runs", "pendulum", "--calls", "3"]) == 0
    *_, head, _, row = capsys.readouterr().out.strip().splitlines()
    assert head == "| policy | observation, layers | onnxruntime | pt2 | `act` |"
    assert re.fullmatch(r"\| pendulum \| 3, [\d-]+ \|( \d+ \(\d+\) \|){3}", row), row


def test_latency_cells_are_microseconds() -> None:
    assert latency.cells({"a": [3e-6, 1e-6, 9e-6], "b": [0.5]}) == ["3 (1)", "500000 (500000)"]
