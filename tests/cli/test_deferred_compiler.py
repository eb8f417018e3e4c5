"""Test that the command imports torch.compile's package only when something uses it."""

import os
import subprocess
import sys

import pytest

FIT = """
import sys
from td3_lightning.__main__ import run
flags = "--data.env_id Pendulum-v1 --collector.warmup_steps 10 --trainer.enable_progress_bar false"
size = "--data.capacity 100 --data.batch_size 4 --data.steps_per_epoch 20 --data.eval_episodes 1 --trainer.max_epochs 1"
assert run(["fit", *flags.split(), *size.split()]) == 0
print("compiler imported:", "torch._dynamo.eval_frame" in sys.modules)
"""
COMPILE = """
import sys
import torch
from td3_lightning.cli.deferred_compiler import defer_compiler
defer_compiler()
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.ones(2)).sum().backward()
optimizer.step()
deferred = torch._dynamo
assert "torch._dynamo.eval_frame" not in sys.modules
exec(sys.argv[1])
assert torch._dynamo is sys.modules["torch._dynamo"] is deferred and type(deferred) is type(sys)
compiled = torch.compile(layer, backend="eager")
assert torch.equal(compiled(torch.ones(2)), layer(torch.ones(2)))
optimizer.step()
"""


def run(program: str, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fit_does_not_import_the_compiler(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(FIT).splitlines()[-1] == "compiler imported: False"


def test_first_use_imports_the_compiler() -> None:
    run(COMPILE, "import torch._dynamo.config")
