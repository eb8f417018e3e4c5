"""Read the replay rows of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from td3_lightning.serialization.segment_files import with_rows


def check_rows(state: Mapping[str, Any], folder: Path) -> None:
    """Read all segment files of a replay state; raise `UnfitError` if one is missing or has changed."""
    for ring in with_rows(state, folder)["rings"]:
        list(ring["rows"])
