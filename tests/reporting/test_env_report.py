"""Check the report of an environment on environments that have or lack each property."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from reset_toys import Global, GlobalTorch, Heavy, Hidden, OwnModule, SeedsGlobal
from td3_lightning import ReplayData
from td3_lightning.cli.app import main
from td3_lightning.reporting.env_report import properties
from toys import Counter, InPlace, Restless, Seeded, Spaces


class Wide(Seeded):
    """Return float64 observations, one of which is out of the bounds of its space."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = gym.spaces.Box(-100, np.array([100, 100, 7.5], np.float32), (3,))

    def _obs(self) -> Any:
        return super()._obs().astype(np.float64)


def report(kind: Any, steps: int = 50, **env_kwargs: Any) -> dict[str, Any]:
    return {each.name: each for each in properties(ReplayData(kind, env_kwargs), 3, steps)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Seeded, ("yes", "yes", "note")),
        (SeedsGlobal, ("yes", "yes", "note")),
        (InPlace, ("yes", "yes", "no")),  # its observations have the number of the episode
        (Heavy, ("yes", "yes", "no")),
        (Global, ("no", "no", "no")),
        (GlobalTorch, ("no", "no", "no")),
        (Hidden, ("no", "no", "no")),
        (OwnModule, ("no", "no", "no")),
        (Restless, ("no", "no", "no")),
    ],
)
def test_what_a_resume_requires(kind: Any, expected: tuple[str, ...]) -> None:
    found = report(kind)
    assert tuple(found[name].verdict for name in ("reproducible", "restorable", "independent")) == expected


def test_report_gives_the_cause() -> None:
    assert report(Hidden)["reproducible"].text == "the environment draws from the global generator of NumPy"
    assert report(OwnModule)["reproducible"].text == "step 1 differs"
    assert report(Heavy)["independent"].text == "step 1 differs"
    kept = "an episode is the same in a new object and after 2 others, but reset keeps Seeded.episode, Seeded.total"
    assert report(Seeded)["independent"].text == kept


def test_report_of_spaces() -> None:
    assert report(Spaces)["spaces kept"].text == "all observations are in their space of 3 numbers (float32)"
    found = report(Wide)["spaces kept"]
    assert (found.verdict, found.text[:43]) == ("note", "observations are float64 instead of float32")
    assert found.text.endswith("of the observations are out of the bounds, for example 8 at index 2")


@pytest.mark.parametrize(
    ("kind", "kwargs", "steps", "expected"),
    [
        (Counter, {"end": "truncated"}, 50, ("yes", "episodes of 5 to 5 steps, truncated at the limit")),
        (Counter, {}, 50, ("note", "all episodes terminate after 5 steps; if this is a time limit, return it as")),
        (Seeded, {}, 50, ("note", "episodes of 6 to 8 steps, and no limit is known")),
        ("Pendulum-v1", {}, 9, ("yes", "episodes of 9 to 9 steps, the limit of 200 steps truncates")),
    ],
)
def test_report_of_time_limit(kind: Any, kwargs: dict[str, Any], steps: int, expected: tuple[str, str]) -> None:
    verdict, text = expected
    found = report(kind, steps, **kwargs)["time limit"]
    assert (found.verdict, found.text[: len(text)]) == (verdict, text)


def test_command_prints_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "--data.env_id=Pendulum-v1", "--episodes=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["reproducible", "restorable", "independent", "spaces kept", "time limit", "reward", "cost", "video"]
    assert [line[:14].strip() for line in lines] == names
    assert [line[14:20].strip() for line in lines] == ["yes"] * len(names)
    assert "-16" in lines[5]
    assert lines[7].endswith("frames of 500 x 500")


def test_command_fails_if_a_resume_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "--data.env_id=reset_toys/Heavy-v0"]) == 1
    captured = capsys.readouterr()
    begin = "A resumed run in reset_toys/Heavy-v0 differs from an uninterrupted one (independent: no). Draw"
    assert captured.err.startswith(begin)
    assert "video         note  record is not possible: render_modes of reset_toys/Heavy-v0 must" in captured.out
    assert main(["check-env", "--data.env_id=toys/Counter-v0", "--episodes=1"]) == 2
    assert capsys.readouterr().err.startswith("episodes must be")
