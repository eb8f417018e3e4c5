"""Test that the command imports torch.compile's package only when something uses it."""

import os
import subprocess
import sys

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
import torch._dynamo.config
assert torch._dynamo is sys.modules["torch._dynamo"] is deferred and type(deferred) is type(sys)
compiled = torch.compile(layer, backend="eager")
assert torch.equal(compiled(torch.ones(2)), layer(torch.ones(2)))
optimizer.step()
"""


def test_first_use_imports_the_compiler() -> None:
    """`test_fit_needs_nothing_that_windows_lacks` shows that a run does not import it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
