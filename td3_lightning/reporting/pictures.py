"""Write figures as PNG files."""

import warnings
from collections.abc import Callable
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.text import Text

from td3_lightning.atomic_files import atomic_write

# A matplotlibrc of the user may require LaTeX. Agg cannot draw very long lines in one piece.
STYLE = ("default", {"agg.path.chunksize": 10_000})


def write_picture(path: Path, draw: Callable[[], Figure]) -> None:
    """Draw a figure in the default style of Matplotlib, and write it as PNG.

    No text is a formula, because a name may contain "$". Characters that the font does not have are drawn as boxes
    without a warning.
    """
    with style.context(list(STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = draw()
        for text in figure.findobj(Text):
            text.set_parse_math(False)
        atomic_write(path, lambda file: figure.savefig(file, format="png"))
