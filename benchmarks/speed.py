"""python -m benchmarks.speed: whole training loops of td3_lightning and of others, side by side in one run.

python -m benchmarks.speed --rivals-python .venv-rivals/bin/python
python -m benchmarks.speed --contenders ours bare sb3 floor --workloads L --windows 3 --seconds 2
python -m benchmarks.speed --variant medium='--trainer.precision bf16-mixed'
"""

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from benchmarks.race import Contender, Measured, missing, race
from benchmarks.workloads import WORKLOADS

CONTENDERS = {
    "ours": Contender("td3_lightning", "ours"),
    "bare": Contender("td3_lightning without the Trainer", "bare"),
    "sb3": Contender("Stable-Baselines3", "sb3", ("stable_baselines3",)),
    "sbx": Contender("SBX", "sbx", ("sbx",)),
    "torchrl": Contender("TorchRL", "torchrl", ("torchrl",)),
    "torchrl-compiled": Contender("TorchRL, compiled", "torchrl", ("torchrl",), ("compiled",)),
    "tianshou": Contender("Tianshou", "tianshou", ("tianshou",)),
    "cleanrl": Contender("CleanRL's way", "cleanrl", ("torch", "tensorboard")),
    "cleanrl-jax": Contender("CleanRL's way, JAX", "cleanrl_jax", ("jax", "flax", "optax")),
    "leanrl": Contender("LeanRL's way", "leanrl", ("torchrl",)),
    "leanrl-compiled": Contender("LeanRL's way, compiled", "leanrl", ("torchrl",), ("compiled",)),
    "original": Contender("the author's loop", "original", ("torch",)),
    "floor": Contender("only the matrix products, float32", "floor"),
    "floor-bf16": Contender("only the matrix products, bf16", "floor", (), ("bf16",)),
}
PACKAGES = ("torch", "lightning", "stable_baselines3", "sbx-rl", "torchrl", "tianshou", "jax", "flax")


def main(args: Sequence[str] | None = None) -> int:
    """Runs the comparison, prints its tables, and writes them and the numbers behind them."""
    options = parse(args)
    threads = limit_cores(options.threads)
    contenders = CONTENDERS | variants(options.variant)
    chosen = choose(options.contenders or list(contenders), contenders, options.rivals_python)
    measured = {
        workload: race(chosen, workload, options.windows, options.seconds, threads) for workload in options.workloads
    }
    conditions = describe(threads, options)
    write(Path(options.output), conditions, measured)
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help=f"of {', '.join(CONTENDERS)}; all")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="L, C or both")
    parser.add_argument("--windows", type=int, default=5, help="windows measured of each contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="cores for each contender")
    parser.add_argument(
        "--rivals-python", type=interpreter, default=sys.executable, help="interpreter that has the rivals installed"
    )
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME='FLAGS'",
        help="td3_lightning once more, with further flags of its command line; becomes ours:NAME and bare:NAME",
    )
    parser.add_argument("--output", default="speed", help="where NAME.md and NAME.json are written")
    return parser.parse_args(args)


def interpreter(name: str) -> str:
    """The path of a Python, given one or a name to look for."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"{name} is no program; give the path of a Python that has the rivals")
    return os.path.abspath(found)  # contenders start elsewhere


def limit_cores(threads: int) -> int:
    """Keeps this process and all that it starts to so many cores, which every library respects."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    return len(os.sched_getaffinity(0))


def variants(given: Sequence[str]) -> dict[str, Contender]:
    """Contenders of ours with further flags."""
    named = {}
    for variant in given:
        name, flags = variant.split("=", 1)
        words = tuple(shlex.split(flags))
        named[f"ours:{name}"] = Contender(f"td3_lightning, {name}", "ours", (), words)
        if all(word.startswith(("--model.", "--data.")) for word in words if word.startswith("--")):
            named[f"bare:{name}"] = Contender(f"td3_lightning, {name}, without the Trainer", "bare", (), words)
    return named


def choose(names: Sequence[str], known: Mapping[str, Contender], rivals_python: str) -> dict[Contender, str]:
    """The contenders that can run, each with its interpreter; says in one sentence which cannot, and why."""
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{unknown[0]} is no contender; choose from {', '.join(known)}.")
    packages = sorted({package for name in names for package in known[name].needs})
    absent = missing(packages, rivals_python) if packages else set()
    left_out = [name for name in names if absent.intersection(known[name].needs)]
    if left_out:
        print(
            f"Not installed in {rivals_python} and left out: {', '.join(left_out)}; "
            "see benchmarks/requirements.txt and --rivals-python."
        )
    if "floor-bf16" in names and not has_bf16():
        print("This CPU multiplies no bfloat16 matrices, so that floor is left out.")
        left_out.append("floor-bf16")
    return {
        known[name]: rivals_python if known[name].needs else sys.executable for name in names if name not in left_out
    }


def has_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices natively."""
    return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", _read("/proc/cpuinfo")))


def describe(threads: int, options: argparse.Namespace) -> dict[str, str]:
    """The machine, the versions and the conditions of a run."""
    model = re.search(r"model name\s*: (.*)", _read("/proc/cpuinfo"))
    return {
        "command": f"python -m benchmarks.speed {shlex.join(sys.argv[1:])}".strip(),
        "date": date.today().isoformat(),
        "machine": f"{model[1] if model else platform.machine()}, {threads} cores used of {os.cpu_count()}",
        "load": f"{os.getloadavg()[0]:.1f} at the end, of which at most {threads} are the contender's own",
        "versions": f"Python {platform.python_version()}; {versions(options.rivals_python)}",
        "protocol": f"{options.windows} windows of {options.seconds:g} s each, in turn; default settings for float32",
    }


def versions(python: str) -> str:
    """The packages' versions, as far as they are installed: the rivals' where those run in a place of their own."""
    code = (
        "import sys; from importlib.metadata import packages_distributions, version, PackageNotFoundError\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass"
    )
    places = dict.fromkeys([sys.executable, python])
    lines = [subprocess.check_output([place, "-c", code, *PACKAGES], text=True).splitlines() for place in places]
    return ", ".join(dict.fromkeys(line for place in lines for line in place))


def write(output: Path, conditions: Mapping[str, str], measured: Mapping[str, list[Measured]]) -> None:
    """Prints the tables, and writes them as Markdown and all numbers as JSON."""
    output.parent.mkdir(parents=True, exist_ok=True)
    numbers = {name: [each.plain() for each in contenders] for name, contenders in measured.items()}
    output.with_suffix(".json").write_text(json.dumps({"conditions": conditions, "measured": numbers}, indent=1))
    tables = [f"## {name}: {WORKLOADS[name].title}\n\n{table(contenders)}" for name, contenders in measured.items()]
    notes = "\n".join(f"- {name}: {text}" for name, text in conditions.items())
    text = "\n\n".join(["# Speed", notes, *tables]) + "\n"
    output.with_suffix(".md").write_text(text)
    print(f"\n{text}")


def table(contenders: Sequence[Measured]) -> str:
    """A Markdown table, the fastest first; the first contender is the one that the others are compared with."""
    if not contenders:
        return "Nobody was measured."
    reference = contenders[0]
    head = [
        "",
        "steps/s, median",
        f"{reference.title} is so many times as fast, median (min to max)",
        "start to first update, s",
        "peak memory, MB",
        "bytes a transition",
    ]
    ranked = sorted(contenders, key=lambda each: -statistics.median(each.steps_per_second))
    rows = [head, ["---", *["---:"] * 5], *([*row(each, reference)] for each in ranked)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def row(contender: Measured, reference: Measured) -> list[str]:
    """A contender's cells."""
    pairs = zip(reference.steps_per_second, contender.steps_per_second, strict=True)
    ratios = [ours / theirs for ours, theirs in pairs]
    replay = contender.transition_bytes
    return [
        contender.title,
        f"{statistics.median(contender.steps_per_second):,.0f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        "" if replay is None else f"{contender.seconds_to_first_update:.1f}",
        f"{contender.peak_memory / 1e6:,.0f}",
        "" if replay is None else f"{replay:.0f}",
    ]


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


if __name__ == "__main__":
    sys.exit(main())
