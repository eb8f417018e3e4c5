"""python -m benchmarks.speed: compare the training loops of td3_lightning and of other implementations in one run.

python -m benchmarks.speed --baselines-python .venv-baselines/bin/python --output benchmarks/results/amd_epyc
python -m benchmarks.speed --baselines ours ours-loop sb3 floor --workloads L --windows 3 --seconds 2
python -m benchmarks.speed --variant bf16='--trainer.precision bf16-mixed'
python -m benchmarks.speed --checkout before=../earlier --baselines ours ours:before --workloads L C L-LN C-LN T
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.arguments import interpreter, positive_float, positive_int
from benchmarks.interleaved import Baseline, measure, missing
from benchmarks.machine import describe, has_bf16, limit_cores
from benchmarks.records import Records, comparison_table
from benchmarks.workloads import OURS_ONLY, PLAIN, WORKLOADS

SB3, TORCHRL = ("stable_baselines3",), ("torchrl",)
BASELINES = {
    "ours": Baseline("td3_lightning", "ours"),
    "ours-autograd": Baseline("td3_lightning, autograd", "without", flags=("manual_update.py",)),
    **{
        f"without-{name}": Baseline(f"td3_lightning without {part}", "without", flags=(part,))
        for name, part in (
            ("adam", "adam.py"),
            ("loop", "training_loop.py"),
        )
    },
    "without-fast": Baseline("td3_lightning, readable update", "without", flags=("update rules",)),
    "ours-loop": Baseline("td3_lightning without the Trainer", "ours_loop"),
    "sb3": Baseline("Stable-Baselines3", "sb3", SB3, has_layer_norm=False),
    "sb3-tuned": Baseline("Stable-Baselines3, tuned", "sb3", SB3, ("tuned",), has_layer_norm=False),
    "sb3-gpu": Baseline("Stable-Baselines3, GPU", "sb3", SB3, ("cuda",), has_layer_norm=False),
    "sbx": Baseline("SBX", "sbx", ("sbx",), has_layer_norm=False),
    "torchrl": Baseline("TorchRL", "torchrl", TORCHRL),
    "torchrl-compiled": Baseline("TorchRL, compiled", "torchrl", TORCHRL, ("compiled",)),
    "tianshou": Baseline("Tianshou", "tianshou", ("tianshou",)),
    "cleanrl": Baseline("CleanRL-style loop", "cleanrl", ("torch", "tensorboard")),
    "cleanrl-tuned": Baseline("CleanRL-style loop, tuned", "cleanrl_tuned", ("torch", "tensorboard")),
    "cleanrl-jax": Baseline("CleanRL-style loop, JAX", "cleanrl_jax", ("jax", "flax", "optax")),
    "leanrl": Baseline("LeanRL-style loop", "leanrl", TORCHRL),
    "leanrl-compiled": Baseline("LeanRL-style loop, compiled", "leanrl", TORCHRL, ("compiled",)),
    "sfujim": Baseline("author's loop (sfujim/TD3)", "sfujim", ("torch",), has_layer_norm=False),
    "floor": Baseline("matrix products only, float32", "floor"),
    "floor-bf16": Baseline("matrix products only, bfloat16", "floor", (), ("bf16",)),
}


def main(args: Sequence[str] | None = None) -> int:
    """Run the comparison, print its tables, and add its rows to the result file."""
    options = parse(args)
    threads = limit_cores(options.threads)
    baselines = BASELINES | variants(options.variant) | checkouts(options.checkout)
    default = [name for name in baselines if not name.startswith("without-") and not name.endswith("-gpu")]
    chosen = choose(options.baselines or default, baselines, options.baselines_python)
    measured = {
        workload: measure(supported(chosen, workload), workload, options.windows, options.seconds, threads)
        for workload in options.workloads
    }
    conditions = describe("speed", threads, [options.baselines_python])
    conditions["protocol"] = f"{options.windows} windows of {options.seconds:g} s each, in turn"
    print("\n" + "\n".join(f"- {name}: {text}" for name, text in conditions.items()))
    for workload, measurements in measured.items():
        print(f"\n## {workload}: {WORKLOADS[workload].title}\n\n{comparison_table(measurements)}")
    if options.output:
        records = Records(options.output)
        records.add(conditions, measured)
        records.write()
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--baselines", nargs="+", metavar="NAME", help=f"any of {', '.join(BASELINES)}; default: all")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(PLAIN), help="default: L C")
    parser.add_argument("--windows", type=positive_int, default=5, help="windows for each implementation")
    parser.add_argument("--seconds", type=positive_float, default=3.0, help="length of a window")
    parser.add_argument(
        "--threads", type=positive_int, default=len(os.sched_getaffinity(0)), help="threads for each implementation"
    )
    parser.add_argument(
        "--baselines-python", type=interpreter, default=sys.executable, help="interpreter with the baselines' packages"
    )
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME='FLAGS'",
        help="add ours:NAME and ours-loop:NAME, which are td3_lightning with further flags of its command line",
    )
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="add ours:NAME, which is td3_lightning of another checkout, for example of an earlier commit",
    )
    parser.add_argument("--output", type=Path, help="result file of this machine type; the run is added to its rows")
    return parser.parse_args(args)


def variants(definitions: Sequence[str]) -> dict[str, Baseline]:
    """Create the implementations of `--variant`: td3_lightning with further flags."""
    named = {}
    for definition in definitions:
        name, _, flags = definition.partition("=")
        try:
            words = tuple(shlex.split(flags))
        except ValueError:  # an open quotation
            words = ()
        if not words:
            sys.exit(f"--variant must be NAME='FLAGS', got {definition}.")
        named[f"ours:{name}"] = Baseline(f"td3_lightning, {name}", "ours", (), words)
        if all(word.startswith(("--model.", "--data.")) for word in words if word.startswith("--")):
            named[f"ours-loop:{name}"] = Baseline(f"td3_lightning, {name}, without the Trainer", "ours_loop", (), words)
    return named


def checkouts(definitions: Sequence[str]) -> dict[str, Baseline]:
    """Create the implementations of `--checkout`: td3_lightning of other checkouts."""
    named = {}
    for definition in definitions:
        name, _, folder = definition.partition("=")
        root = Path(folder).expanduser().absolute()
        if not (root / "benchmarks" / "baseline.py").is_file():
            sys.exit(f"--checkout must be NAME=FOLDER with a checkout of this repository, got {definition}.")
        named[f"ours:{name}"] = Baseline(f"td3_lightning, {name}", "ours", root=root)
    return named


def choose(names: Sequence[str], known: Mapping[str, Baseline], baselines_python: str) -> dict[Baseline, str]:
    """Return the implementations that can run, each with its interpreter, and print which ones are skipped."""
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"--baselines must be any of {', '.join(known)}, got {unknown[0]}.")
    packages = sorted({package for name in names for package in known[name].requires})
    absent = missing(packages, baselines_python) if packages else set()
    skipped = [name for name in names if absent.intersection(known[name].requires)]
    if skipped:
        print(
            f"Skipping {', '.join(skipped)}: {', '.join(sorted(absent))} must be installed in {baselines_python}. "
            "Install benchmarks/requirements.txt, or use --baselines-python."
        )
    if "floor-bf16" in names and not has_bf16():
        print("Skipping floor-bf16: it requires a CPU with AVX512-BF16 or AMX.")
        skipped.append("floor-bf16")
    return {
        known[name]: baselines_python if known[name].requires else sys.executable
        for name in names
        if name not in skipped
    }


def supported(baselines: Mapping[Baseline, str], workload: str) -> dict[Baseline, str]:
    """Return the implementations that can train on a workload, and print which ones are skipped."""
    chosen = WORKLOADS[workload]
    skipped = {each: "no LayerNorm" for each in baselines if chosen.layer_norm and not each.has_layer_norm}
    others = [each for each in baselines if workload in OURS_ONLY and each.module != "ours"]
    skipped |= dict.fromkeys(others, "only td3_lightning trains on this workload here")
    for baseline, reason in skipped.items():
        print(f"{workload}  Skipping {baseline.title}: {reason}.")
    return {baseline: python for baseline, python in baselines.items() if baseline not in skipped}


if __name__ == "__main__":
    sys.exit(main())
