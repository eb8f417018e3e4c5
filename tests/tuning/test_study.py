"""Check studies whose runs are a stub: resuming, pruning, kills, claims and files."""

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import fit_stub
from one_sentence import refused
from td3_lightning.errors import UsageError
from td3_lightning.reporting.metrics_csv import Points
from td3_lightning.tuning.run import Plan, Run
from td3_lightning.tuning.space import Space
from td3_lightning.tuning.study import Search, Trials, open_study, run_study

SEARCH = Search(Space({"model.hidden_dims": {"choices": [[8, 8], [16]]}, "data.n_step": {"low": 1, "high": 5}}), 2)


def states(plan: Plan) -> dict[str, str]:
    with (plan.folder / "trials.csv").open() as file:
        return {row["run"]: row["state"] for row in csv.DictReader(file)}


def starts(plan: Plan, trial: int) -> list[str]:
    lines = (plan.folder / f"trial_{trial}" / "log.txt").read_text().splitlines()
    return [line for line in lines if line.startswith("start fit ")]


def next_of(trials: Trials) -> Run:
    run = trials.next()
    assert run is not None
    run.folder.mkdir(parents=True, exist_ok=True)
    return run


def test_trials_are_runs_with_their_settings(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.txt").write_text("trial_1 value 50\n")
    run_study(plan, SEARCH)
    best = yaml.safe_load((plan.folder / "best.yaml").read_text())
    words = " ".join(f"--{name}={value}" for name, value in best.items())
    assert starts(plan, 1) == [f"start fit --config toy.yaml --model.tau 0.1 {words} --name toy/trial_1"]
    with (plan.folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["finished", "finished"]
    assert [rows[1][name] for name in ("env_steps", "best", "best_at", "last", "last_10")] == [
        *("400.0", "53.0", "400.0", "53.0", "51.5")
    ]
    assert rows[1]["model.hidden_dims"] == str(best["model.hidden_dims"])
    text = capsys.readouterr().out
    assert "best       trial 1, last_10 51.50: hidden_dims [" in text
    assert "train      td3-lightning fit --config toy.yaml --model.tau 0.1 --config " in text


def test_same_command_adds_only_missing_trials(plan: Plan) -> None:
    run_study(plan, SEARCH)
    run_study(plan, dataclasses.replace(SEARCH, trials=3))
    assert states(plan) == {f"trial {number}": "finished" for number in range(3)}
    assert [len(starts(plan, number)) for number in range(3)] == [1, 1, 1]


def test_runs_of_another_study_are_not_adopted(plan: Plan) -> None:
    """Their settings differ from those that the new study would draw."""
    run_study(plan, SEARCH)
    (plan.folder / "study.db").unlink()
    with refused("the folder of a sweep", "trial_0", fix="Use another --name"):
        run_study(plan, SEARCH)


def test_trial_of_a_killed_sweep_continues(plan: Plan) -> None:
    run = next_of(open_study(plan, SEARCH))
    checkpoint = plan.folder / "trial_0" / "version_0" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("2")
    (checkpoint.parents[1] / "metrics.csv").write_text("env_steps,eval/return_mean\n100,0.0\n200,1.0\n300,2.0\n")
    run_study(plan, SEARCH)
    (start,) = starts(plan, 0)
    assert start.endswith(f"{' '.join(run.flags)} --name toy/trial_0 {fit_stub.resume_words(run.folder)}")
    assert states(plan) == {"trial 0": "finished", "trial 1": "finished"}
    assert run.evaluations("eval/return_mean").tolist() == [[100, 0], [200, 1], [300, 2], [400, 3]]


REPORT = Trials.report


def _report(trials: Trials, run: Run, points: Points) -> bool:
    """Report, and let the run continue if it is not pruned."""
    is_pruned = REPORT(trials, run, points)
    if not is_pruned:
        (run.folder / "read").write_text(str(len(points)))
    return is_pruned


@pytest.mark.parametrize(
    ("pruner", "state", "exit_code", "evaluations"),
    [("median", "pruned", 143, 2), ("none", "finished", 0, 4)],
)
def test_bad_trials_are_pruned(
    plan: Plan, pruner: str, state: str, exit_code: int, evaluations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = [f"trial_{number} slope 0" for number in range(6)]  # the other trials are equal at every evaluation
    wait = [f"trial_{number} wait 60" for number in range(6)]  # each evaluation is read before the next one
    Path("plan.txt").write_text("\n".join([*constant, *wait, "trial_5 value -100"]))
    monkeypatch.setattr(Trials, "report", _report)
    search = dataclasses.replace(SEARCH, trials=6, pruner=pruner, pruner_warmup=1)
    run_study(dataclasses.replace(plan, workers=1), search)
    assert states(plan) == {**{f"trial {number}": "finished" for number in range(5)}, "trial 5": state}
    run = Run(plan.folder / "trial_5", ())
    assert run.record["exit_code"] == exit_code
    assert len(run.evaluations("eval/return_mean")) == evaluations


FALLS, RISES, STAYS = 0, 1, 2  # 10, 7, 4, 1 and 2, 4, 6, 8 and 6, 6, 6, 6
CURVES = "trial_0 value 10\ntrial_0 slope -3\ntrial_1 value 2\ntrial_1 slope 2\ntrial_2 value 6\ntrial_2 slope 0\n"


@pytest.mark.parametrize(
    ("mode", "objective", "best", "value"),
    [
        ("max", "last_10", STAYS, "6.00"),
        ("max", "last", RISES, "8.00"),
        ("max", "best", FALLS, "10.00"),
        ("min", "last_10", RISES, "5.00"),
    ],
)
def test_objective_and_mode_choose_the_best_trial(
    plan: Plan, mode: str, objective: str, best: int, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("plan.txt").write_text(CURVES)
    run_study(dataclasses.replace(plan, mode=mode), dataclasses.replace(SEARCH, trials=3, objective=objective))
    assert f"best       trial {best}, {objective} {value}: " in capsys.readouterr().out
    settings = yaml.safe_load((plan.folder / "best.yaml").read_text())
    assert " ".join(f"--{name}={value}" for name, value in settings.items()) in starts(plan, best)[0]


WRITER = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size=1")  # a transaction is written to the file before its end
database.execute("BEGIN IMMEDIATE")
database.executemany("INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (1, ?, ?)",
                     [(str(number), "x" * 2000) for number in range(1000)])
os.kill(os.getpid(), 9)
"""


def test_study_survives_a_process_that_is_killed_while_it_writes(plan: Plan) -> None:
    """Optuna 5.0.0 can never read a journal again in which a killed process has left half a line."""
    trials = open_study(plan, SEARCH)
    next_of(trials)
    database = plan.folder / "study.db"
    before = database.stat().st_size
    assert subprocess.run([sys.executable, "-c", WRITER, database]).returncode == -9
    assert database.stat().st_size > before  # half of the transaction
    next_of(trials)
    run_study(plan, dataclasses.replace(SEARCH, trials=3))
    assert states(plan) == {f"trial {number}": "finished" for number in range(3)}


def test_failed_trial_is_shown_and_not_repeated(plan: Plan) -> None:
    Path("plan.txt").write_text("trial_0 fail diverged\n")
    run_study(plan, SEARCH)
    run_study(plan, SEARCH)
    assert states(plan) == {"trial 0": "failed", "trial 1": "finished"}
    assert ",diverged\n" in (plan.folder / "trials.csv").read_text()
    assert len(starts(plan, 0)) == 1


def test_changed_settings_of_a_study_are_refused(plan: Plan) -> None:
    open_study(plan, SEARCH)
    other = Space({**SEARCH.space.entries, "data.n_step": {"low": 1, "high": 4}})
    for name, changed, search in (
        ("space", plan, dataclasses.replace(SEARCH, space=other)),
        ("objective", plan, dataclasses.replace(SEARCH, objective="best")),
        ("flags", dataclasses.replace(plan, flags=[]), SEARCH),
        ("config", dataclasses.replace(plan, contents=[{"model": {"tau": 0.3}}]), SEARCH),
    ):
        with pytest.raises(UsageError, match=f"^{name} must be as in the earlier runs of .*, got another value. Undo"):
            open_study(changed, search)


def test_database_holds_the_study_of_several_machines(plan: Plan) -> None:
    search = dataclasses.replace(SEARCH, storage="sqlite:///study.db")
    open_study(plan, search)._study.ask()  # of a machine with another folder
    run_study(plan, search)
    assert states(plan) == {"trial 0": "running", "trial 1": "finished"}


def test_threads_times_workers_is_at_most_the_cores(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(7), raising=False)
    assert [dataclasses.replace(plan, workers=workers).threads for workers in (1, 2, 3, 9)] == [7, 3, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert plan.threads == 5
