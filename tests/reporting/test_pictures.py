"""Test that pictures do not depend on the settings of the user's Matplotlib."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from td3_lightning.reporting.pictures import write_picture


def test_settings_of_the_user_do_not_change_a_picture(tmp_path: Path) -> None:
    """LaTeX fails if it is not installed."""

    def draw() -> Figure:
        figure = Figure()
        figure.add_subplot().set(title="a_b", xlabel="x")
        return figure

    write_picture(tmp_path / "own.png", draw)
    with matplotlib.rc_context({"text.usetex": True, "savefig.dpi": 30, "axes.facecolor": "red"}):
        write_picture(tmp_path / "other.png", draw)
        assert matplotlib.rcParams["text.usetex"]
    pictures = [np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("own", "other")]
    np.testing.assert_array_equal(*pictures)
