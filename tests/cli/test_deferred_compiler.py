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
import os
import sys
import torch
from td3_lightning.cli.deferred_compiler import defer_compiler
defer_compiler()
from lightning.pytorch.utilities.compile import OptimizedModule

layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.ones(2)).sum().backward()
optimizer.step()

@torch.compiler.disable
def is_traced():
    return torch.compiler.is_dynamo_compiling()

def check(use):
    assert not isinstance(layer, OptimizedModule) and not is_traced()
    assert not hasattr(torch._dynamo, "__warningregistry__")
    assert "torch._dynamo.eval_frame" not in sys.modules

    deferred = torch._dynamo
    exec(use)
    assert torch._dynamo is sys.modules["torch._dynamo"] is deferred and type(deferred) is type(sys)
    assert "torch._dynamo.eval_frame" in sys.modules

    compiled = torch.compile(layer, backend="eager")
    assert isinstance(compiled, OptimizedModule) and not isinstance(layer, OptimizedModule)
    assert torch.equal(compiled(torch.ones(2)), layer(torch.ones(2)))

    @torch.compile(backend="eager")
    def step():
        optimizer.zero_grad()
        return torch.compiler.is_dynamo_compiling(), is_traced()

    assert step() == (True, False)

for use in sys.argv[1:]:
    child = os.fork()  # the import is only possible once in a process
    if child == 0:
        check(use)
        os._exit(0)
    print(use, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
USES = ["torch.compile(layer)", "import torch._dynamo.config", "torch._dynamo.disable(layer)"]


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
    assert run(COMPILE, *USES).splitlines() == [f"{use} 0" for use in USES]


def test_imported_compiler_is_not_replaced() -> None:
    """A program can import PyTorch's compiler before the command line."""
    program = "import torch._dynamo; from td3_lightning.cli.deferred_compiler import defer_compiler; defer_compiler()"
    run(f"{program}; import sys; assert type(torch._dynamo) is type(sys); torch._dynamo.reset()")
