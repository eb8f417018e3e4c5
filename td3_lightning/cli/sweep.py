"""The command `sweep`, which runs a configuration over the settings of a search space, or over random seeds."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from td3_lightning.cli.command_line import CommandLine
from td3_lightning.cli.config_files import ConfigFile, read_config, read_space
from td3_lightning.cli.precedence import runs_folder
from td3_lightning.errors import UsageError, refuse, require_int
from td3_lightning.reporting.paths import is_below
from td3_lightning.tuning.cluster import Cluster
from td3_lightning.tuning.run import LocalProcess, Plan
from td3_lightning.tuning.seeds import run_seeds
from td3_lightning.tuning.space import FIXED, Space, flags
from td3_lightning.tuning.study import OBJECTIVES, PRUNERS, Search, run_study

# Options that only a search has.
SEARCH_OPTIONS = ("trials", "storage", "objective", "pruner", "pruner_warmup")


class SettingsCheck(CommandLine):
    """Create the objects of `fit` and close them, so that an invalid setting raises its error before any run starts."""

    def _loggers(self, settings: Mapping[str, Any]) -> list[Logger] | Logger | bool:
        """Leave out added loggers, which would create files and experiments."""
        loggers = super()._loggers(settings)
        return loggers[:1] if isinstance(loggers, list) else loggers

    def before_fit(self) -> None:
        """Print nothing."""

    def fit(self, **_: Any) -> None:
        """Close the environments; `LightningCLI` calls this instead of the Trainer's method."""
        self.datamodule.teardown("fit")
        self.datamodule.eval_env.close()

    def after_fit(self) -> None:
        """Print nothing."""


def sweep(args: Sequence[str]) -> None:
    """Run a sweep, or continue it.

    Args:
        args: Words after `sweep`: its options, and flags of `fit`.

    Raises:
        argparse.ArgumentError: An option is not valid.
        UsageError: An option, a setting or the search space is not valid. No file has been written.
        RunError: All trials or a seed failed.
    """
    options, words = make_parser().parse_known_args(args)
    files = [read_config(name) for name in options.config]
    _check_options(options, words)
    if options.space is None:
        ends = [flags({"seed_everything": seed}) for seed in (min(options.seeds), max(options.seeds))]
        plan = _plan(options, words, files, ends)
        _run(partial(run_seeds, plan, options.seeds), options)
        return
    space = Space(read_space(options.space))
    for name in space.dimensions:
        if any(word.split("=")[0] == f"--{name}" for word in words):
            raise UsageError(f"{name} must be either in the space or a flag, got both. Remove the flag.")
    given = {name: getattr(options, name) for name in SEARCH_OPTIONS if getattr(options, name) is not None}
    plan = _plan(options, words, files, [flags(each) for each in space.corners()])
    _run(partial(run_study, plan, Search(space, **given)), options)


def _run(run: Callable[..., None], options: argparse.Namespace) -> None:
    """Run a sweep on this machine or on a cluster."""
    if options.engine == "local":
        run(LocalProcess)
        return
    with closing(Cluster(options.ray_address or "auto")) as cluster:
        run(cluster.start)


def _plan(options: Any, words: list[str], files: Sequence[ConfigFile], corners: Sequence[Sequence[str]]) -> Plan:
    """Check the settings of all corners, and return the settings of all runs."""
    configs = [word for name in options.config for word in ("--config", name)]
    for corner in corners:
        check = SettingsCheck(["fit", *configs, *words, *corner])
    settings = check.settings
    kind = "seeds" if options.space is None else "sweep"
    name = options.name or "_".join([*(Path(each).stem for each in options.config), kind])
    return Plan(
        name=name,
        folder=runs_folder(settings.trainer.default_root_dir) / name,
        configs=options.config,
        contents=[file.content for file in files],
        flags=words,
        metric=settings.checkpoint.monitor,
        mode=settings.checkpoint.mode,
        workers=options.workers,
        clock="updates" if check.datamodule.offline else "env_steps",
        read=lambda name: read_config(name).content,
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        "td3-lightning sweep",
        description="Run a configuration over the settings of a search space (--space) or over random seeds (--seeds). "
        "Other flags belong to fit. The same command continues an interrupted sweep.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("-c", "--config", action="append", default=[], help="configuration file, as for fit")
    parser.add_argument("--space", help="YAML file with a range or choices for each setting, for example td3.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", help="random seeds, one run each")
    parser.add_argument("--workers", type=int, default=1, help="simultaneous runs (default: 1); they share the cores")
    parser.add_argument("--engine", default="local", choices=("local", "ray"), help="where to train (default: local)")
    parser.add_argument("--ray_address", help="address of the Ray cluster (default: auto, that of this machine)")
    parser.add_argument(
        "--name", help="folder in lightning_logs (default: the names of the configurations, and sweep or seeds)"
    )
    parser.add_argument("--trials", type=int, help="trials of the study (default: 20)")
    parser.add_argument("--storage", help="URL of a database (default: study.db in the folder)")
    parser.add_argument("--objective", choices=OBJECTIVES, help="evaluations that count (default: last_10)")
    parser.add_argument("--pruner", choices=PRUNERS, help="stops bad trials (default: median)")
    parser.add_argument("--pruner_warmup", type=int, help="evaluations before a trial can be pruned (default: 10)")
    return parser


def _check_options(options: argparse.Namespace, words: Sequence[str]) -> None:
    if not options.config:
        raise UsageError("sweep requires --config, got none. Use --config pendulum.yaml, for example.")
    if (options.space is None) == (options.seeds is None):
        got = "none" if options.space is None else "both"
        raise UsageError(f"sweep requires --space or --seeds, got {got}. Use --space td3.yaml or --seeds 0 1 2 3 4.")
    for name, least in {"workers": 1, "trials": 1, "pruner_warmup": 0}.items():
        if getattr(options, name) is not None:
            require_int(name, getattr(options, name), least)
    if options.name is not None and not is_below(options.name):
        raise refuse("name", "a folder in lightning_logs", options.name, "Use --trainer.default_root_dir.")
    fixed = {*FIXED, "seed_everything"} if options.space is None else {*FIXED}
    for word in words:
        if (flag := word.split("=")[0].removeprefix("--")) in fixed and word.startswith("--"):
            raise UsageError(f"--{flag} must not be set for sweep, which sets it for each run. Remove it.")
    if options.seeds is not None and len(set(options.seeds)) < len(options.seeds):
        raise refuse("seeds", "different integers", options.seeds, "Remove the repeated ones.")
