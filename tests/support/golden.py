"""Compare ten short runs with recorded hashes: weights, optimizers and logged numbers, to the last bit.

python tests/support/golden.py                 compare with golden.json
python tests/support/golden.py lap pixels      compare two runs
python tests/support/golden.py --write         record the hashes

Floating-point sums depend on the CPU and on the release of PyTorch, so `golden.json` names both, and this script is not
part of the tests. Record the hashes of the old code before a comparison on another machine. A change of the code that
moves a hash must name the reason.
"""

import argparse
import csv
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD = HERE / "golden.json"
WALL_CLOCK = ("train/steps_per_second", "train/updates_per_second")

SMALL = """
--seed_everything 7 --data.env_id Pendulum-v1 --data.batch_size 32 --data.steps_per_epoch 100 --data.eval_episodes 2
--collector.warmup_steps 50 --trainer.max_epochs 3 --model.hidden_dims [32,32]
"""
TD7 = "--model TD7 --model.zs_dim 16 --data.priority_alpha 0.4 --trainer.callbacks+=td3_lightning.PolicyCheckpoint"
PIXELS = """
--config car_pixels.yaml --seed_everything 7 --data.batch_size 8 --data.steps_per_epoch 20 --data.eval_episodes 1
--collector.warmup_steps 10 --trainer.max_epochs 2 --data.capacity 500 --model.hidden_dims [16]
--data.env_kwargs.max_episode_steps 30
"""
RUNS = {  # flags; a run with a stop is resumed and must equal "manual"
    "readable": f"{SMALL} --trainer.callbacks+=golden.UseReadable",
    "manual": SMALL,
    "td7": f"{SMALL} {TD7}",
    "lap": f"{SMALL} --data.priority_alpha 0.4 --model.critic_loss huber",
    "n_step": f"{SMALL} --data.n_step 3",
    "pixels": PIXELS,
    "two_envs": f"{SMALL} --data.num_envs 2",
    "offline": f"{SMALL} --data.dataset.name golden/manual-v0 --data.dataset.offline true --model.bc_weight 0.4",
    "resumed_in_epoch": f"{SMALL} --trainer.callbacks+=golden.StopInEpoch",
    "resumed_in_evaluation": f"{SMALL} --trainer.callbacks+=golden.StopInEvaluation",
}
CLASSES = '''
import os
import signal
from lightning.pytorch.callbacks import Callback
from td3_lightning import TD3

class Readable(TD3):
    """TD3 with its own critic loss, so that autograd trains it."""
    def critic_loss(self, *args, **kwargs):
        return super().critic_loss(*args, **kwargs)

class UseReadable(Callback):
    """Train a TD3 as a Readable."""
    def setup(self, trainer, module, stage):
        module.__class__ = Readable

class StopInEpoch(Callback):
    """Stop after 137 updates, once."""
    def on_train_batch_end(self, trainer, module, *args):
        if module.updates == 137 and os.environ["GOLDEN_STOPS"]:
            signal.raise_signal(signal.SIGTERM)

class StopInEvaluation(Callback):
    """Stop after the first episode of the second evaluation, once."""
    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, *args):
        if module.updates == 200 and batch_idx == 0 and os.environ["GOLDEN_STOPS"]:
            signal.raise_signal(signal.SIGTERM)
'''


def main() -> int:
    """Run the chosen runs and compare or record their hashes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"runs, from {', '.join(RUNS)}; all by default")
    parser.add_argument("--write", action="store_true", help="record the hashes instead of comparing them")
    options = parser.parse_args()
    names = options.names or list(RUNS)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: run(name, Path(folder)) for name in names}
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"hashes": {}}
    moved = [name for name in names if record["hashes"].get(name) != found[name]]
    for name in names:
        print(f"{name:22} {found[name]} {'moved' if name in moved else ''}")
    stopped = [name for name in names if name.startswith("resumed") and found[name] != found.get("manual", found[name])]
    if stopped:
        print(f"resumed runs that differ from the uninterrupted run: {', '.join(stopped)}")
    if options.write:
        record = {"cpu": cpu(), "torch": torch.__version__, "hashes": {**record["hashes"], **found}}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        return bool(stopped)
    return bool(moved or stopped)


def run(name: str, folder: Path) -> str:
    """Train a run, resume it if it stops, and return its hash."""
    (folder / "golden.py").write_text(CLASSES)
    if name == "offline":
        collect(folder)
    flags = RUNS[name].split()
    status = command(["fit", *flags], folder / name, stops="1")
    if name.startswith("resumed"):
        assert status == 143, f"{name} did not stop, but ended with {status}"
        config = next((folder / name).glob("**/config.yaml"))
        status = command(["fit", "--config", str(config), "--ckpt_path", "last"], folder / name)
    assert status == 0, f"{name} ended with {status}"
    return digest(folder / name)


def collect(folder: Path) -> None:
    """Write the dataset of the offline run with the policy of a short run."""
    assert command(["fit", *SMALL.split()], folder / "collected") == 0
    checkpoint = next((folder / "collected").glob("**/last.ckpt"))
    flags = f"--ckpt_path {checkpoint} --dataset golden/manual-v0 --episodes 2 --noise 0.1"
    assert command(["collect", *flags.split()], folder / "collected") == 0


def command(arguments: list[str], folder: Path, stops: str = "") -> int:
    """Run a command of the package in a folder and return its exit status."""
    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GOLDEN_STOPS": stops,
        "MINARI_DATASETS_PATH": str(folder.parent / "datasets"),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder.parent))),
    }
    with (folder / "output").open("a") as output:
        done = subprocess.run(
            [sys.executable, "-m", "td3_lightning", *arguments],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
        )
    if done.returncode not in (0, 143):
        print((folder / "output").read_text()[-2000:])
    return done.returncode


def digest(folder: Path) -> str:
    """Return the hash of the last checkpoint's tensors and of the logged numbers of a run."""
    checkpoint = torch.load(next(folder.glob("**/last.ckpt")), weights_only=True)
    sha = hashlib.sha256()
    update(sha, {"state_dict": checkpoint["state_dict"], "optimizers": checkpoint["optimizer_states"]})
    with next(folder.glob("**/metrics.csv")).open() as file:
        for row in csv.DictReader(file):
            update(sha, {key: value for key, value in sorted(row.items()) if key not in WALL_CLOCK})
    return sha.hexdigest()[:16]


def update(sha: Any, value: Any) -> None:
    """Add the names and the exact bits of all leaves to a hash."""
    if isinstance(value, dict):
        for key, item in value.items():
            sha.update(repr(key).encode())
            update(sha, item)
    elif isinstance(value, list | tuple):
        for item in value:
            update(sha, item)
    elif isinstance(value, torch.Tensor):
        sha.update(f"{value.dtype} {tuple(value.shape)}".encode())
        sha.update(value.contiguous().numpy().tobytes())
    else:
        sha.update(repr(value).encode())


def cpu() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
