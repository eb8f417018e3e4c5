"""Write figures as PNG files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def png_writer(figure: Figure) -> Callable[[BinaryIO], None]:
    """Return a function that writes a figure to an open file.

    Characters that the font does not have, for example in the name of a run, are drawn as boxes without a warning.
    """

    def write(file: BinaryIO) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(file, format="png")

    return write
