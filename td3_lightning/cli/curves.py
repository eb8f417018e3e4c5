"""The command `curves`, which draws the learning curves of several runs and needs no environment."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from td3_lightning.cli.error_messages import explain_parser_error
from td3_lightning.errors import UsageError
from td3_lightning.reporting.console import echo
from td3_lightning.reporting.paths import absolute


def draw_curves(args: Sequence[str]) -> None:
    """Draw the learning curves of runs, and print the path of the picture.

    Args:
        args: Words after `curves`.

    Raises:
        UsageError: A word is not valid, or a run does not have the metric.
    """
    options = _parse(args)
    output = absolute("output", options.output)
    if output.suffix != ".png":
        raise UsageError(f"output must be the path of a .png file, got {options.output}. Use curves.png, for example.")
    from td3_lightning.reporting.seed_curves import write_seed_curves  # imports matplotlib

    runs, reference = ([absolute("runs", path) for path in paths] for paths in (options.runs, options.reference))
    write_seed_curves(runs, reference, options.metric, options.title or options.metric, output)
    echo(options.output)


def _parse(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "td3-lightning curves",
        description="Draw learning curves of several runs, their mean and its 95% interval.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs, or files such as seeds/33.csv.gz")
    parser.add_argument("--reference", nargs="+", default=[], type=Path, help="runs to compare with")
    parser.add_argument("--metric", default="eval/return_mean", help="column of metrics.csv (default: %(default)s)")
    parser.add_argument("--title", help="title of the picture (default: the metric)")
    parser.add_argument("--output", default="curves.png", help="path of the picture (default: %(default)s)")
    try:
        options, unknown = parser.parse_known_args(args)
    except argparse.ArgumentError as error:
        raise UsageError(explain_parser_error(str(error), [])) from error
    if unknown:
        raise UsageError(f"curves has no setting {unknown[0]}. Use curves --help for its settings.")
    if not options.runs:
        raise UsageError("curves requires the folder of at least one run, got none. Use lightning_logs/car/version_0.")
    return options
