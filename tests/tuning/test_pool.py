"""Check the pool with an engine that starts no process."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from td3_lightning.errors import RunError, UsageError
from td3_lightning.tuning.plan import Plan
from td3_lightning.tuning.run import Claim, LocalProcess, Run
from td3_lightning.tuning.seeds import run_seeds


class FakeProcess:
    """A run that ends with a code a few polls after `stop`, and must not be polled again."""

    def __init__(self, run: Run, polls: int) -> None:
        self._run, self._polls = run, polls
        self._codes: Iterator[int | None] | None = None

    def poll(self) -> int | None:
        if self._run.label == "seed 3":
            raise RunError("The node has no folder.")
        if self._codes is None:
            return None
        code = next(self._codes)
        if code is not None:
            self._run.end(["fit"], code, 10.0)
        return code

    def stop(self) -> None:
        self._codes = iter([*[None] * self._polls, 143])


def test_error_of_a_node_saves_the_other_runs_once(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    started: list[str] = []

    def start(run: Run, plan: Plan) -> FakeProcess:
        started.append(run.label)
        return FakeProcess(run, len(started))  # they end one after the other

    plan = Plan(plan.name, plan.folder, plan.configs, plan.contents, plan.flags, workers=3)
    with pytest.raises(RunError, match="The node has no folder"):
        run_seeds(plan, [1, 2, 3], start)
    assert started == ["seed 1", "seed 2", "seed 3"]
    records = [Run(plan.folder / f"seed_{seed}", ()).record for seed in (1, 2, 3)]
    assert [each.get("exit_code") for each in records] == [143, 143, None]
    assert [each.get("seconds") for each in records] == [10, 10, None]
    assert "Saving 2 active runs.\nAll runs are saved." in capsys.readouterr().out
    assert Path(plan.folder, "seed_3", "claim").exists()


@pytest.mark.parametrize(
    ("text", "got"), [("model: {tau: 0.3}", "got other settings. Undo"), ("a: b: c", "got an error")]
)
def test_configuration_that_is_edited_ends_the_sweep(text: str, got: str, plan: Plan) -> None:
    """The other seeds would be trained with other settings."""
    file = Path("toy.yaml")
    file.write_text("model: {tau: 0.2}  # comment\n")

    def start(run: Run, plan: Plan) -> LocalProcess:
        file.write_text(text)
        return LocalProcess(run, plan)

    with pytest.raises(UsageError, match=rf"^toy\.yaml must be as at the start of the sweep, {got}"):
        run_seeds(dataclasses.replace(plan, files=[file], workers=1), [1, 2], start)
    assert Run(plan.folder / "seed_1", ()).finished
    assert not Path(plan.folder, "seed_2", "log.txt").exists()
    Claim(plan.folder / "seed_2").release()
    file.write_text("{model: {tau: 0.2}}")
    run_seeds(dataclasses.replace(plan, files=[file], workers=1), [1, 2])


def test_killed_run_is_not_restarted_with_an_edited_file(plan: Plan) -> None:
    """Its end is recorded once."""
    file = Path("toy.yaml")
    file.write_text("model: {tau: 0.2}")
    Path("plan.txt").write_text("seed_1 kill 2\n")

    def start(run: Run, plan: Plan) -> LocalProcess:
        file.write_text("model: {tau: 0.3}")
        return LocalProcess(run, plan)

    run, before = Run(plan.folder / "seed_1", ()), time.monotonic()
    with pytest.raises(UsageError, match=r"^toy\.yaml must be as at the start of the sweep"):
        run_seeds(dataclasses.replace(plan, files=[file]), [1], start)
    assert run.record["exit_code"] == -9
    assert run.record["seconds"] <= time.monotonic() - before
    assert len(run.log_lines()) == 1
    Claim(run.folder).release()
