"""Tests of the benchmarks: arithmetic against known numbers, and a measurement of our own loops."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import clock, latency, ranks, update
from benchmarks.baselines import floor, ours_loop
from benchmarks.baselines.cleanrl import Agent
from benchmarks.baselines.cleanrl_tuned import TunedAgent
from benchmarks.baselines.ours_loop import parse
from benchmarks.baselines.process import tune_process
from benchmarks.interleaved import Measurement
from benchmarks.records import Records, comparison_table
from benchmarks.speed import variants
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


def test_variant_adds_td3_lightning_with_flags() -> None:
    made = variants(["fast=--model.tau 0.01 --data.batch_size=128", "bf16=--trainer.precision bf16-mixed"])
    assert list(made) == ["ours:fast", "ours-loop:fast", "ours:bf16"]
    flags = list(made["ours-loop:fast"].flags)
    assert flags == ["--model.tau", "0.01", "--data.batch_size=128"]
    assert parse(flags) == {"model": {"tau": 0.01}, "data": {"batch_size": 128}}


def test_each_rank_counts_in_the_table_of_ranks(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.csv"
    metrics.write_text(
        "env_steps,train/steps_per_second,eval/return_mean\n50,100,\n60,,-5\n80,,-9\n100,120,\n150,300,\n"
    )
    assert ranks.row("lander", "2 ranks", metrics) == ["lander", "2 ranks", "240", "120", "300", "-9.0", "-5.0"]
    options, flags = ranks.parse(["--tasks", "lander", "--minutes", "0.5", "--data.batch_size", "64"])
    assert (options.minutes, flags) == (0.5, ["--data.batch_size", "64"])


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
    if not (process := os.fork()):
        torch.set_flush_denormal(False)
        tiny = torch.tensor([1e-39])
        kept = (tiny * 0.5).item() > 0
        tune_process()
        os._exit(not kept or (tiny * 0.5).item() != 0)
    assert os.waitpid(process, 0)[1] == 0


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
    assert ticks.transition_bytes == 4 * (3 + 1 + 2) + 4


# Latency.


def test_latency_is_measured_for_each_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(latency, "limit_cores", lambda cores: cores)
    assert latency.main(["--runs", "pendulum", "--calls", "3"]) == 0
    *_, head, _, row = capsys.readouterr().out.strip().splitlines()
    assert head == "| policy | observation, layers | onnxruntime | pt2 | `act` |"
    assert re.fullmatch(r"\| pendulum \| 3, [\d-]+ \|( \d+ \(\d+\) \|){3}", row), row
