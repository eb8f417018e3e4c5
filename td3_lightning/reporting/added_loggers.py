"""Loggers that a user adds to that of a run: an error at the start ends the command, a later one is a warning."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn

from td3_lightning.errors import UsageError, described, one_line
from td3_lightning.reporting.episode_lines import PrintEpisodes
from td3_lightning.reporting.logger import RunLogger, check_log_dirs_differ

OWN = (RunLogger, PrintEpisodes)  # these handle the errors of their files and of a closed pipe themselves
METHODS = ("log_metrics", "log_hyperparams", "log_graph", "save", "after_save_checkpoint", "finalize")


def connect(loggers: Iterable[Logger]) -> None:
    """Create the experiments of added loggers, and convert their later exceptions to one warning for each logger.

    Raises:
        UsageError: A logger cannot create its experiment, for example because the user is not logged in, or writes to
            the folder of the run.
    """
    loggers = list(loggers)
    for own in (each for each in loggers if isinstance(each, RunLogger)):
        try:
            check_log_dirs_differ(own, loggers)  # before the others create their folders
        except UsageError:
            own.finalize("failed")  # removes the folder that it has reserved
            raise
    for logger in loggers:
        if not isinstance(logger, OWN):
            _create_experiment(logger)
            reported: list[Exception] = []
            for name in METHODS:
                setattr(logger, name, partial(_call, getattr(logger, name), type(logger).__name__, reported))


def _create_experiment(logger: Logger) -> None:
    try:
        getattr(logger, "experiment", None)  # made by the first access
    except Exception as error:  # a service may raise anything
        name, reason = type(logger).__name__, one_line(error).rstrip(".") or type(error).__name__
        raise UsageError(
            f"trainer.logger must be able to start its experiment, got {name} with the error: {reason}. Correct its "
            "settings, or remove it: metrics.csv and TensorBoard do not need it."
        ) from error


def _call(method: Callable[..., Any], logger: str, reported: list[Exception], /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a logger. Warn of the first exception instead of raising it, and return None."""
    try:
        return method(*args, **kwargs)
    except Exception as error:  # a service may raise anything, and its failure must not end the training
        if not reported:
            reported.append(error)
            rank_zero_warn(f"{logger} failed: {described(error)}. The run continues; metrics.csv has every row.")
