"""Test that pictures do not depend on the settings of the user's Matplotlib."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from td3_lightning.reporting.pictures import write_picture
from td3_lightning.reporting.seed_curves import write_seed_curves


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


def test_names_that_are_no_formulas_are_drawn(tmp_path: Path) -> None:
    names = r"a$\frac$b_{", "$", "cost in $ and $"
    for name in names:
        run = tmp_path / name
        run.mkdir()
        (run / "metrics.csv").write_text(f"env_steps,{names[0]}\n1,2\n3,4\n")
    write_seed_curves({name: [tmp_path / name] for name in names}, names[0], names[1], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000
