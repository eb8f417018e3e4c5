"""Search for settings with an Optuna study."""

import json
import os
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from td3_lightning.atomic_files import make_folder
from td3_lightning.errors import RunError, UsageError, import_extra, one_line
from td3_lightning.reporting.console import echo, show
from td3_lightning.reporting.paths import shown
from td3_lightning.tuning.plan import Plan, check_unchanged, command, replace_file
from td3_lightning.tuning.pool import run_all
from td3_lightning.tuning.progress import Progress
from td3_lightning.tuning.result import Result, number, results_table, settings_text, write_csv
from td3_lightning.tuning.run import LocalProcess, Start
from td3_lightning.tuning.trials import CSV, Search, Trials

OBJECTIVES = ("last_10", "last", "best")
PRUNERS = {"median": "MedianPruner", "halving": "SuccessiveHalvingPruner", "none": "NopPruner"}
DIRECTIONS = {"max": "maximize", "min": "minimize"}
JOURNAL, BEST = "study.journal", "best.yaml"
JOURNAL_START = b'{"op_code":'  # of each line that Optuna writes
SETTINGS = "td3_lightning"  # user attribute of the study


def run_study(plan: Plan, search: Search, start: Start = LocalProcess) -> None:
    """Run the trials of a study, or those that are left of it. Write and print the results.

    Raises:
        UsageError: Optuna is missing, the storage cannot be read or belongs to other settings, or the folder has runs
            of another study.
        OSError: The folder of the sweep cannot be written.
        RunError: No trial is complete.
    """
    held = [*plan.folder.glob("trial_*")]  # before the study is read, because another sweep may add trials meanwhile
    trials = open_study(plan, search)
    trials.check_folders(held)
    make_folder(plan.folder)
    with Progress(plan.metric) as progress:
        progress.update(trials.results())
        run_all(trials, plan, progress, start)
    write_csv(trials.results(), plan.folder / CSV)
    _print_end(trials, plan, search)


def open_study(plan: Plan, search: Search) -> Trials:
    """Create a study, or load it if it exists.

    Raises:
        UsageError: Optuna is missing, or the storage cannot be read or belongs to other settings.
    """
    optuna = import_optuna()
    try:
        storage = optuna.storages.get_storage(_storage(optuna, plan, search))
        study = optuna.create_study(
            storage=storage,
            study_name=plan.name,
            direction=DIRECTIONS[plan.mode],
            # A trial in progress counts as a bad one, so that simultaneous trials differ.
            sampler=optuna.samplers.TPESampler(constant_liar=True),
            pruner=getattr(optuna.pruners, PRUNERS[search.pruner])(),
            load_if_exists=True,
        )
        trials = Trials(study, storage, plan, search)
        _check_settings(study, plan, search)
        trials.results()  # fails if the storage has trials of another kind
    except UsageError:
        raise
    except Exception as error:  # each database driver has its own exceptions
        if search.storage is None and isinstance(error, OSError):  # the folder of the sweep
            raise
        raise UsageError(
            f"storage must be a journal file or a database that can be read, got {search.storage or plan.folder} "
            f"({one_line(error) or type(error).__name__}). Use another --storage or --name."
        ) from error
    return trials


def _check_settings(study: Any, plan: Plan, search: Search) -> None:
    """Store the settings of a new study, or raise `UsageError` if those of an earlier one are different."""
    settings = {**plan.identity, "space": search.space.entries, "objective": search.objective}
    now = json.loads(json.dumps(settings, default=str))  # as the storage returns it
    before = study.user_attrs.get(SETTINGS)
    if before is None:
        study.set_user_attr(SETTINGS, now)
    else:
        check_unchanged(before, now, plan)


def import_optuna() -> Any:
    """Import Optuna, and reduce its messages.

    Raises:
        UsageError: It is not installed.
    """
    optuna = import_extra("optuna", "sweep --space", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _storage(optuna: Any, plan: Plan, search: Search) -> Any:
    """Return the URL of a database, or the storage of a journal file."""
    if search.storage is not None and "://" in search.storage:
        return search.storage
    if search.storage is None:
        make_folder(plan.folder)
    journal, path = optuna.storages.journal, Path(journal_path(plan, search))
    if path.exists() and not path.is_file():
        raise UsageError(f"storage must be a file, got a folder, a pipe or a device: {path}. Use another --storage.")
    if path.exists() and not (path.read_bytes() or JOURNAL_START).startswith(JOURNAL_START):
        raise UsageError(
            f"storage must be a journal file or a database that can be read, got {path}. Use another --storage."
        )
    _remove_incomplete_line(path, journal.JournalFileSymlinkLock(str(path)))
    return journal.JournalStorage(journal.JournalFileBackend(str(path)))


def _remove_incomplete_line(path: Path, lock: Any) -> None:
    """Remove the part of a line that a killed process has left at the end, to which Optuna would append the next."""
    if not path.exists() or path.read_bytes()[-1:] in (b"", b"\n"):
        return
    lock.acquire()  # another process of the sweep may be writing
    try:
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    finally:
        lock.release()


def journal_path(plan: Plan, search: Search) -> str:
    """Return the path of the journal file, or the URL of the database."""
    if search.storage is None:
        return str(plan.folder / JOURNAL)
    return search.storage if "://" in search.storage else str(Path(search.storage).expanduser())


def _print_end(trials: Trials, plan: Plan, search: Search) -> None:
    """Print the results, the best trial and the next commands.

    Raises:
        RunError: No trial is complete.
    """
    results = sorted(trials.results(), key=lambda result: _rank(result, search))
    show(results_table(results, plan.metric))
    best = results[0] if results else None
    if best is None or best.state != "finished":
        raise RunError(f"No trial of {plan.folder} is complete. Read log.txt in the folder of a trial.")
    content = yaml.safe_dump(trials.best_settings(), sort_keys=False).encode()
    replace_file(plan.folder / BEST, lambda file: file.write(content))
    start = Path.cwd()
    again = [*plan.words, "--config", shown(plan.folder / BEST, start)]
    value = number(best.values[search.objective])
    echo(f"best       {best.label}, {search.objective} {value}: {settings_text(best.settings)}")
    echo(f"files      {shown(plan.folder / CSV, start)}, {again[-1]}")
    echo(f"train      {command('fit', *again)}")
    echo(f"seeds      {command('sweep', *without_seed(again), '--seeds', *other_seeds(plan.seed))}")
    path = journal_path(plan, search)
    if "://" not in path:  # a URL may hold a password
        echo(f"dashboard  {shlex.join(['optuna-dashboard', shown(path, start)])}")


def other_seeds(seed: int) -> list[str]:
    """Return five seeds other than the trials', whose best trial was chosen by its result with theirs."""
    return [str(each) for each in range(6) if each != seed][:5]


def without_seed(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the flag of the random seed, which `--seeds` replaces."""
    flag = "--seed_everything"
    pairs = zip(("", *words), words, strict=False)
    return [word for before, word in pairs if flag not in (word, before) and not word.startswith(f"{flag}=")]


def _rank(result: Result, search: Search) -> tuple[bool, float]:
    """Return the key by which results are sorted: complete trials first, the best one at the top."""
    value = result.values.get(search.objective, float("nan"))
    return result.state != "finished", -value if result.mode == "max" else value
