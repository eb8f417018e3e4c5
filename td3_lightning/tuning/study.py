"""Search for settings with an Optuna study. Each trial is a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from td3_lightning.atomic_files import atomic_write, make_folder
from td3_lightning.errors import RunError, UsageError, one_line, refuse
from td3_lightning.reporting.console import echo, show
from td3_lightning.reporting.metrics_csv import Points
from td3_lightning.reporting.paths import shown
from td3_lightning.tuning.pool import Result, locked, number, results_table, run_all, settings_text, write_csv
from td3_lightning.tuning.run import LocalProcess, Plan, Run, Start, command
from td3_lightning.tuning.space import Space, flags, import_optuna

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, Trial

OBJECTIVES = ("last_10", "last", "best")
PRUNERS = {"median": "MedianPruner", "halving": "SuccessiveHalvingPruner", "none": "NopPruner"}
STATES = {"RUNNING": "running", "WAITING": "waiting", "COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
DATABASE, BEST, CSV = "study.db", "best.yaml", "trials.csv"
SETTINGS = "td3_lightning"  # user attribute of the study
ERROR = "error"  # user attribute of a trial


@dataclass(frozen=True)
class Search:
    """How a study searches.

    Attributes:
        space: The settings that vary.
        trials: Number of trials in the study.
        objective: "last_10", "last" or "best", which rates a trial: see `Result.values`.
        pruner: "median", "halving" or "none".
        pruner_warmup: Evaluations after which a trial can be pruned.
        storage: URL of a database; None uses the SQLite file `study.db` in the folder of the sweep.
    """

    space: Space
    trials: int = 20
    objective: str = "last_10"
    pruner: str = "median"
    pruner_warmup: int = 10
    storage: str | None = None


def run_study(plan: Plan, search: Search, start: Start = LocalProcess) -> None:
    """Run the trials of a study, or those that are left of it. Write and print the results.

    Raises:
        UsageError: Optuna is missing, the storage cannot be read or belongs to other settings, or the folder has runs
            of another study or is in use by another sweep.
        OSError: The folder of the sweep cannot be written.
        RunError: No trial is complete.
    """
    trials = open_study(plan, search)
    with locked(plan.folder):
        trials.check_folders()
        run_all(trials, plan, start)
        write_csv(trials.results(), plan.folder / CSV)
        _print_end(trials, plan, search)


def open_study(plan: Plan, search: Search) -> "Trials":
    """Create a study, or load it if it exists. The errors are those of `run_study`."""
    optuna = import_optuna()
    if search.storage is None:
        make_folder(plan.folder)
    file = plan.folder.absolute() / DATABASE  # SQLite undoes the writes of a killed process
    url = search.storage or f"sqlite:///{file}"
    try:
        study = optuna.create_study(
            storage=url,
            study_name=plan.name,
            direction=f"{plan.mode}imize",
            # A trial in progress counts as a bad one, so that simultaneous trials differ.
            sampler=optuna.samplers.TPESampler(constant_liar=True),
            pruner=getattr(optuna.pruners, PRUNERS[search.pruner])(),
            load_if_exists=True,
        )
    except Exception as error:  # each database driver has its own exceptions
        raise UsageError(
            f"storage must be the URL of a database that can be read, such as sqlite:///sweeps.db, got {url} "
            f"({one_line(error) or type(error).__name__}). Use another --storage or --name."
        ) from error
    now = plan.settings(space=search.space.entries, objective=search.objective)
    if SETTINGS in study.user_attrs:
        plan.check_unchanged(study.user_attrs[SETTINGS], now)
    else:
        study.set_user_attr(SETTINGS, now)
    return Trials(study, plan, search)


class Trials:
    """The trials of a study as a source of runs.

    A trial that is running in the database, and has a folder here, was left by a killed sweep, and is continued. A
    database may also have trials of other machines.
    """

    def __init__(self, study: "optuna.Study", plan: Plan, search: Search) -> None:
        self._study, self._plan, self._search = study, plan, search
        self._mine: dict[Path, Trial] = {}

    def next(self) -> Run | None:
        """Return a trial that was left by a killed sweep, or a new one; None if the study has enough."""
        from optuna.trial import Trial

        frozen = self._frozen()
        for trial in frozen:
            folder = self._folder(trial.number)
            is_here = self._search.storage is None or folder.is_dir()
            if trial.state.name == "RUNNING" and folder not in self._mine and is_here:
                return self._run(Trial(self._study, trial._trial_id))
        if sum(trial.state.name != "WAITING" for trial in frozen) >= self._search.trials:
            return None
        return self._run(self._study.ask())

    def check_folders(self) -> None:
        """Raise `UsageError` if a folder of a trial has runs, but the study has no such trial."""
        known = {self._folder(trial.number) for trial in self._frozen()}
        for folder in self._plan.folder.glob("trial_*"):
            if folder not in known and any(folder.glob("version_*")):
                fix = f"Use another --name, or move {self._plan.folder}."
                raise refuse("the folder of a sweep", "without runs of another study", folder.name, fix)

    def _frozen(self) -> list["FrozenTrial"]:
        return self._study.get_trials(deepcopy=False)

    def _folder(self, trial: int) -> Path:
        return self._plan.folder / f"trial_{trial}"

    def _run(self, trial: "Trial") -> Run:
        folder = self._folder(trial.number)
        self._mine[folder] = trial
        return Run(folder, flags(self._search.space.suggest(trial)))

    def report(self, run: Run, points: Points) -> bool:
        """Store new evaluations, and return whether the trial is pruned."""
        from optuna.trial import TrialState

        trial = self._mine[run.folder]
        self._store(trial, points)
        if len(points) <= self._search.pruner_warmup or not trial.should_prune():
            return False
        self._study.tell(trial.number, state=TrialState.PRUNED)
        return True

    def finish(self, run: Run, points: Points, error: str) -> None:
        """Store the result of a trial."""
        from optuna.trial import TrialState

        trial = self._mine.pop(run.folder)
        if not self._frozen()[trial.number].state.is_finished():  # a pruned trial is
            self._store(trial, points)
            value = Result(run.label, "finished", points, self._plan.mode).values.get(self._search.objective)
            if value is None or not math.isfinite(value):
                error = error or f"{self._plan.metric} must be a number, got {value}. Read metrics.csv of the run."
            if error:
                trial.set_user_attr(ERROR, error)
                self._study.tell(trial.number, state=TrialState.FAIL)
            else:
                self._study.tell(trial.number, value)
        write_csv(self.results(), self._plan.folder / CSV)

    def _store(self, trial: "Trial", points: Points) -> None:
        """Report the evaluations that the database does not have. A resumed run repeats some of them."""
        held = self._frozen()[trial.number].intermediate_values
        for step, value in points.tolist():
            if int(step) not in held:
                trial.report(value, int(step))

    def results(self) -> Sequence[Result]:
        """Return the results of all trials, those of other machines included."""
        results = []
        for trial in self._frozen():
            points = np.array(sorted(trial.intermediate_values.items()), dtype=np.float64).reshape(-1, 2)
            seconds = trial.duration.total_seconds() if trial.duration else None
            error, settings = str(trial.user_attrs.get(ERROR, "")), self._search.space.decode(trial.params)
            state, label = STATES[trial.state.name], f"trial {trial.number}"
            results.append(Result(label, state, points, self._plan.mode, settings, error, seconds, self._plan.clock))
        return results


def _print_end(trials: Trials, plan: Plan, search: Search) -> None:
    """Print the results, the best trial and the next commands.

    Raises:
        RunError: No trial is complete.
    """
    sign = -1 if plan.mode == "max" else 1

    def rank(result: Result) -> tuple[bool, float]:  # complete trials first, the best one at the top
        return result.state != "finished", sign * result.values.get(search.objective, float("nan"))

    results = sorted(trials.results(), key=rank)
    show(results_table(results, plan.metric))
    best = results[0]
    if best.state != "finished":
        raise RunError(f"No trial of {plan.folder} is complete. Read log.txt in the folder of a trial.")
    content = yaml.safe_dump(dict(best.settings), sort_keys=False).encode()
    atomic_write(plan.folder / BEST, lambda file: file.write(content))
    found = shown(plan.folder / BEST, Path.cwd())
    value = number(best.values[search.objective])
    echo(f"best       {best.label}, {search.objective} {value}: {settings_text(best.settings)}")
    echo(f"files      {shown(plan.folder / CSV, Path.cwd())}, {found}")
    echo(f"train      {command('fit', *plan.words, '--config', found)}")
