"""The trials of an Optuna study as runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from td3_lightning.errors import refuse
from td3_lightning.tuning.plan import Plan
from td3_lightning.tuning.result import Points, Result, write_csv
from td3_lightning.tuning.run import Claim, Run
from td3_lightning.tuning.space import Space, flags

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

ERROR = "error"  # user attribute of a trial
CSV = "trials.csv"
STATES = {"RUNNING": "running", "WAITING": "waiting", "COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}


@dataclass(frozen=True)
class Search:
    """How a study searches.

    Attributes:
        space: The settings that vary.
        trials: Number of trials in the study.
        objective: "last_10", "last" or "best", which rates a trial: see `Result.values`.
        pruner: "median", "halving" or "none".
        pruner_warmup: Evaluations after which a trial can be pruned.
        storage: URL of a database, or path of a journal file; None uses `study.journal` in the folder of the sweep.
    """

    space: Space
    trials: int = 20
    objective: str = "last_10"
    pruner: str = "median"
    pruner_warmup: int = 10
    storage: str | None = None


class Trials:
    """The trials of a study as a source of runs.

    A trial that is running in the storage belongs to the sweep that has claimed its folder. If no sweep has it, it was
    left by a killed one, and the next free worker continues it. Several machines share a study in this way.

    Args:
        study: Study that holds the trials.
        storage: Storage of the study.
        plan: Settings of all runs.
        search: How the study searches.
    """

    def __init__(self, study: "optuna.Study", storage: "BaseStorage", plan: Plan, search: Search) -> None:
        self._study, self._storage, self._plan, self._search = study, storage, plan, search
        self._mine: dict[Path, Trial] = {}

    def next(self) -> tuple[Run, Claim] | None:
        """Return a trial that was left by another sweep, or a new one; None if the study has enough."""
        frozen = self._frozen()
        for trial in frozen:
            folder = self._folder(trial.number)
            may_adopt = trial.state.name == "RUNNING" and folder not in self._mine and self._is_here(folder)
            if may_adopt and (claimed := self._claim(trial.number)) is not None:
                return claimed
        if sum(trial.state.name != "WAITING" for trial in frozen) >= self._search.trials:
            return None
        return self._claim(self._study.ask().number) or self.next()

    def check_folders(self, folders: Sequence[Path]) -> None:
        """Raise `UsageError` if a folder of a trial has runs, but the study has no such trial."""
        known = {self._folder(trial.number) for trial in self._frozen()}
        for folder in folders:
            if folder not in known and any(folder.glob("version_*")):
                fix = f"Use another --name, or move {self._plan.folder}."
                raise refuse("the folder of a sweep", "without runs of another study", folder.name, fix)

    def _is_here(self, folder: Path) -> bool:
        """Return whether a running trial belongs to this machine. A database may also have trials of others."""
        return self._search.storage is None or folder.is_dir()

    def _frozen(self) -> list["FrozenTrial"]:
        return self._study.get_trials(deepcopy=False)

    def _folder(self, trial: int) -> Path:
        return self._plan.folder / f"trial_{trial}"

    def _claim(self, number: int) -> tuple[Run, Claim] | None:
        from optuna.trial import Trial

        folder = self._folder(number)
        try:
            claim = Claim(folder)
        except BlockingIOError:
            return None
        if self._is_finished(number):  # the other sweep has ended it meanwhile
            claim.release()
            return None
        study_id = self._storage.get_study_id_from_name(self._plan.name)
        trial = Trial(self._study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))
        self._mine[folder] = trial
        return Run(folder, flags(self._search.space.suggest(trial))), claim

    def _is_finished(self, number: int) -> bool:
        return self._frozen()[number].state.is_finished()

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
        if not self._is_finished(trial.number):  # a pruned trial is
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
        """Report the evaluations that the storage does not have. A resumed run repeats some of them."""
        held = self._frozen()[trial.number].intermediate_values
        for step, value in points.tolist():
            if int(step) not in held:
                trial.report(value, int(step))

    def results(self) -> Sequence[Result]:
        """Return the results of all trials, those of other machines included."""
        return [self._result(trial) for trial in self._frozen()]

    def _result(self, trial: "FrozenTrial") -> Result:
        points = np.array(sorted(trial.intermediate_values.items()), dtype=np.float64).reshape(-1, 2)
        seconds = trial.duration.total_seconds() if trial.duration else None
        error = str(trial.user_attrs.get(ERROR, ""))
        state, label = STATES[trial.state.name], f"trial {trial.number}"
        return Result(label, state, points, self._plan.mode, trial.params, error, seconds, self._plan.clock)

    def best_settings(self) -> dict[str, Any]:
        """Return the settings of the best complete trial."""
        return self._search.space.decode(self._study.best_params)
