"""The flag `--version`, which needs neither PyTorch nor Lightning."""

from td3_lightning import __version__
from td3_lightning.reporting.console import discard_unwritable, echo, make_streams_tolerant


def print_version() -> int:
    """Print the version, and return the exit code."""
    make_streams_tolerant()
    echo(f"td3-lightning {__version__}")
    discard_unwritable()
    return 0
