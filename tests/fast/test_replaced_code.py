"""The code that trains is the code of `algorithm/`, also if it is edited in place, in a subclass or at run time."""

import compileall
import json
import os
import shutil
import subprocess
import sys
from functools import wraps
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import pytest
import torch
from torch import Tensor

import td3_lightning
from td3_lightning import TD3, Actor, Batch
from td3_lightning.algorithm import td3
from td3_lightning.fast import replaced_code
from td3_lightning.fast.manual_update import ManualUpdate, supports

PACKAGE = Path(td3_lightning.__file__).parent
RUN_BY_BOTH = {  # code of algorithm/ that the fast update calls, too
    *("draw_target_noise", "smooth_target_action", "scheduled", "prepare_step", "shares_encoder", "average_gradients"),
    *("world_size", "_is_initialized", "has_hooks"),
}
# Train the copy of the package in the working directory after each edit, which is undone in the file after the warm-up.
# Forks share the imports.
TRAIN = """
import gc, json, os, pathlib, sys
from td3_lightning.cli.deferred_compiler import defer_compiler
defer_compiler()
import gymnasium.envs.classic_control, torch.profiler
import lightning as L
from lightning.pytorch.callbacks import LambdaCallback

def train(agent_class, undo):
    from td3_lightning import TD3, TD7, Collector, ReplayData
    L.seed_everything(0, verbose=False)
    agent_class, settings = (TD7, {"zs_dim": 4, "target_update_freq": 2}) if agent_class == "TD7" else (TD3, {})
    data = ReplayData("Pendulum-v1", batch_size=4, steps_per_epoch=8, eval_episodes=1)
    agent = agent_class(data.obs_dim, data.action_low, data.action_high, hidden_dims=[8], **settings)
    unused = dict.fromkeys(["enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"], False)
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, callbacks=[Collector(4), undo], limit_val_batches=0, **unused)
    trainer.fit(agent, datamodule=data)
    print("rule", type(agent.update_rule).__name__)
    print("weights", *[float(weight.double().sum()) for weight in agent.parameters()])

gc.freeze()
for number, (agent_class, file, before, after) in enumerate(json.load(sys.stdin)):
    path = pathlib.Path("td3_lightning/algorithm", file)
    original = path.read_text()
    assert before in original, before
    path.write_text(original.replace(before, after))
    if not os.fork():
        output = os.open(f"{number}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.dont_write_bytecode = True
        train(agent_class, LambdaCallback(on_train_start=lambda *_: path.write_text(original)))
        sys.stdout.flush()
        os._exit(0)  # without the end of the interpreter, which takes seconds
    os.wait()
    path.write_text(original)
"""
OUT, SAY = "raise SystemExit('edited')", "print('edited')"
EDITS = {  # agent and edit: file, its text, the edited text, and the function that the run reports as replaced
    "TD3 unedited": ("td3.py", "class", "class", ""),
    "TD7 unedited": ("td7.py", "class", "class", ""),
    "TD3 comment": ("td3.py", '"""Return minus the mean', '# A comment.\n        """Return', ""),
    "TD3 td_target": ("td3.py", "return batch.reward + batch.discount * next_q", OUT, "TD3.td_target"),
    "TD3 targets": ("td3.py", "list(online.parameters()), self.settings.tau", "list(target.parameters()), 0.5", ""),
    "TD3 batch start": ("agent.py", "        model = self.trainer.strategy.model", f"        {OUT}", ""),
    "TD3 losses": ("losses.py", '{"mse": squared_error', '{"mse": huber', "huber"),
    "TD3 critics": ("networks.py", "return compute(torch.cat", f"{OUT}\n        compute(torch.cat", "Critics.q1"),
    "TD7 logs": ("td3.py", "return loss.detach(), q", f"{SAY}; return loss.detach(), q", "TD3.update_critics"),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what training prints after each edit of a copy of the package."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    edits = [(name.split()[0], *edit[:3]) for name, edit in EDITS.items()]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRAIN]
    # Edited files differ from the hash in their bytecode, and are compiled again.
    compileall.compile_dir(folder, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    subprocess.run(command, cwd=folder, env=environment, input=json.dumps(edits), text=True, check=True)
    return {name: (folder / f"{number}.txt").read_text() for number, name in enumerate(EDITS)}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_place_is_what_trains(edit: str, outputs: dict[str, str]) -> None:
    output, (*_, reported) = outputs[edit], EDITS[edit]
    unedited = outputs[f"{edit.split()[0]} unedited"]
    assert ("The fast update is off, because " in output) == (reported != "")
    if edit.endswith(("unedited", "comment")):
        assert output == unedited
        assert ("rule ManualUpdate" if edit.startswith("TD3") else "rule AutogradUpdate") in output
        return
    assert "edited" in output or weights(output) != weights(unedited)
    if reported:
        assert f"The fast update is off, because {reported} differs from the code that it replaces." in output
        assert "rule ManualUpdate" not in output


def weights(output: str) -> str:
    return output[output.index("weights") :]


class Penalised(TD3):
    def actor_loss(self, batch: Batch) -> Tensor:
        return super().actor_loss(batch) + 1


class Forwarding(TD3):
    def compute_gradients(self, loss: Tensor, network: torch.nn.Module) -> None:
        super().compute_gradients(loss, network)


@pytest.mark.parametrize("agent_class", [Penalised, Forwarding])
def test_an_override_of_a_replaced_method_trains(agent_class: type[TD3]) -> None:
    assert not supports(agent_class(3, [-1.0], [1.0], hidden_dims=[4]))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(TD3, "critic_loss"), (TD3, "td_target"), (TD3, "update_actor"), (Actor, "forward"), (td3, "at_least_float32")],
)
def test_a_method_that_is_replaced_at_run_time_trains(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = TD3(3, [-1.0], [1.0], hidden_dims=[4])
    assert supports(agent)
    original = getattr(owner, name)

    @wraps(original)
    def same_name(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, same_name)
    assert not supports(agent)


def test_digests_are_those_of_the_code() -> None:
    """If this fails, adapt `td3_lightning/fast` to the edited code of `algorithm/`, then copy the new digests there."""
    for expected in (replaced_code.STEPS, replaced_code.LOSSES):
        assert {name: replaced_code.digest(getattr(TD3, name)) for name in expected} == expected
    functions = replaced_code.forward_functions()
    assert {name: replaced_code.digest(function) for name, function in functions.items()} == replaced_code.FORWARD


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_digests_cover_all_code_that_an_update_runs(
    layer_norm: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = TD3(3, [-1.0], [1.0], hidden_dims=[4], layer_norm=layer_norm)
    optimizers: Any = agent.configure_optimizers()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(agent, "optimizers", lambda: optimizers)
    monkeypatch.setattr(agent, "manual_backward", lambda loss, inputs: loss.backward(inputs=inputs))
    random = torch.Generator().manual_seed(0)
    batch = Batch(*(torch.randn(5, *shape, generator=random) for shape in ((3,), (1,), (), (), (3,))))
    run = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and Path(frame.f_code.co_filename).parent == PACKAGE / "algorithm":
            run.add(frame.f_code)

    sys.setprofile(note)
    agent.update_critics(batch)
    agent.update_actor(batch)
    sys.setprofile(None)
    methods = [getattr(TD3, name) for name in (*replaced_code.STEPS, *replaced_code.LOSSES)]
    covered = {function.__code__ for function in (*methods, *replaced_code.forward_functions().values())}
    assert {code.co_name for code in run - covered if not code.co_name.startswith("<")} <= RUN_BY_BOTH
    assert len(run & covered) > 15
    assert isinstance(agent.update_rule, ManualUpdate)
