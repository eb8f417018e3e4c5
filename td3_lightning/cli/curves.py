"""The command `curves`, which draws the learning curves of several runs and needs no environment."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from td3_lightning.errors import UsageError, refuse
from td3_lightning.reporting.console import echo
from td3_lightning.reporting.paths import absolute


def draw_curves(args: Sequence[str]) -> None:
    """Draw the learning curves of the runs that the words after `curves` name, and print the path of the picture."""
    options, unknown = make_parser().parse_known_intermixed_args(args)
    if unknown:
        raise UsageError(f"curves has no setting {unknown[0]}. Use curves --help for its settings.")
    if not options.output.endswith(".png"):
        raise UsageError(f"output must be the path of a .png file, got {options.output}. Use curves.png, for example.")
    from td3_lightning.reporting.seed_curves import write_seed_curves  # imports matplotlib

    groups = {name: [absolute("runs", path) for path in paths] for name, paths in _groups(options).items()}
    write_seed_curves(groups, options.metric, options.title or options.metric, absolute("output", options.output))
    echo(options.output)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        "td3-lightning curves",
        description="Draw the learning curves of several runs with their mean and its 95% interval.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs, or files such as seeds/33.csv.gz")
    text = "name and runs of another group; may be repeated"
    parser.add_argument("--group", nargs="+", action="append", default=[], metavar=("NAME", "RUN"), help=text)
    parser.add_argument("--metric", default="eval/return_mean", help="column of metrics.csv (default: %(default)s)")
    parser.add_argument("--title", help="title of the picture (default: the metric)")
    parser.add_argument("--output", default="curves.png", help="path of the picture (default: %(default)s)")
    return parser


def _groups(options: argparse.Namespace) -> dict[str, list[Path]]:
    """Return the runs of each group by its name."""
    groups = {"runs": options.runs} if options.runs else {}
    for name, *words in options.group:
        if not words or name in groups:
            fix = "Use --group td7 lightning_logs/td7/version_0, for example."
            raise refuse("group", "a new name, followed by at least one run", " ".join([name, *words]), fix)
        groups[name] = [Path(word) for word in words]
    if not groups:
        raise UsageError("curves requires the folder of at least one run, got none. Use lightning_logs/car/version_0.")
    return groups
