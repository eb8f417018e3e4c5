"""Test the entry point of the command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from td3_lightning import __version__
from td3_lightning.__main__ import run

OPTIONAL = ["minari", "onnx", "onnxruntime", "optuna", "pandas", "ray", "tensorflow", "imageio_ffmpeg"]
IMPORT = """
import gc, sys
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
from td3_lightning.__main__ import import_main
collections.clear()
import_main()
assert not collections and gc.isenabled() and gc.get_freeze_count() > 100_000
print(*sys.modules)
"""
INTERRUPT = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "lightning":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from td3_lightning.__main__ import run
run(["fit"])
"""


@pytest.mark.parametrize("words", [["--version"], ["fit", "--version"]])
def test_version_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert capsys.readouterr().out == f"td3-lightning {__version__}\n"


def test_sweep_in_a_launched_process_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "1", "WORLD_SIZE": "2", "HERE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run(["sweep"]) == 2  # without its options
    assert {"SLURM_PROCID", "SLURM_NTASKS", "RANK", "WORLD_SIZE", "HERE"} & os.environ.keys() == {"HERE"}


def test_ctrl_c_during_imports_exits_with_130_and_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("words", [["fitt"], []])
def test_wrong_command_is_refused_before_the_imports(words: list[str]) -> None:
    program = f"import sys; from td3_lightning.__main__ import run; print(run({words}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert "command" in done.stderr


WINDOWS = """
import os, signal, sys
from types import SimpleNamespace
whole = SimpleNamespace(**vars(signal))
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "setitimer", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fork", "killpg", "setsid", "getpgid", "posix_fallocate"):
    delattr(os, name)
for name in ("fcntl", "termios", "pwd", "grp", "resource"):
    sys.modules[name] = None
from td3_lightning.__main__ import import_main, run
import_main()
from lightning.pytorch.trainer.connectors import signal_connector
signal_connector.signal = whole  # Lightning asks for the name of the system
words = "--data.env_id Pendulum-v1 --data.steps_per_epoch 4 --data.batch_size 4 --data.eval_episodes 1".split()
words += "--collector.warmup_steps 10 --trainer.max_epochs 1 --trainer.accelerator cpu --model.hidden_dims [8]".split()
assert run(["fit", *words]) == 0
assert run(["fit", *words, "--trainer.max_epochs", "2", "--config", "here.yaml", "--ckpt_path", "last:default"]) == 0
assert "torch._dynamo.eval_frame" not in sys.modules, "the compiler, which takes 1.5 s of CPU time"
"""


def test_fit_needs_nothing_that_windows_lacks(tmp_path: Path) -> None:
    tmp_path.joinpath("here.yaml").write_text("name: default")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", WINDOWS], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("last.ckpt"))) == 1


def test_imports_no_other_command_and_no_extra(tmp_path: Path) -> None:
    for package in OPTIONAL:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", IMPORT], env=env, capture_output=True, text=True, check=True)
    others = {f"td3_lightning.{name}" for name in ("cli.curves", "cli.sweep", "interop", "tuning.study")}
    assert not {*OPTIONAL, *others} & set(done.stdout.split())


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
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
