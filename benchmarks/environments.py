"""python -m benchmarks.environments: train, resume and record in the packages of environments that users bring.

Each row of environments.yaml is installed into a virtual environment of its own, build/environments/NAME, which is
removed at the end. Its result replaces its line in results/environments.jsonl. `--table` writes the table of
docs/environments.md from these lines. uv installs the packages. Its environment variables apply, such as UV_FIND_LINKS.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.machine import commit, cpu, limit_cores
from benchmarks.workloads import ROOT
from td3_lightning.serialization.checkpoint_file import read_checkpoint

ROWS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "benchmarks" / "environments.yaml").read_text())
RESULTS = ROOT / "benchmarks" / "results" / "environments.jsonl"
BUILD = ROOT / "build" / "environments"
PAGE = ROOT / "docs" / "environments.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- end -->)", re.DOTALL)
HEADER = ("package", "`data` in YAML", "`fit`", "resume", "video", "steps/s", "surprises")
RELEASED = "2026-11-28"  # later releases of dependencies are ignored, so every version is fixed
PINS = ("torch==2.13.0",)
LISTED = ("gymnasium", "numpy", "torch", "mujoco", "pybullet", "jax")  # versions that a result names besides the pins
SETTINGS: dict[str, dict[str, Any]] = {  # tiny networks; 930 steps are no multiple of usual time limits
    "model": {"hidden_dims": [16, 16]},
    "data": {"steps_per_epoch": 530, "batch_size": 16, "eval_episodes": 1, "capacity": 5000},
    "collector": {"warmup_steps": 400},
    "trainer": {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False},
}
COLLECTS = (1, "episode")  # collector.collect: the run is interrupted within an episode, or at its end
LIMIT = 200  # seconds of CPU time of one command
Result = dict[str, Any]


class FailedError(Exception):
    """A command that failed, with its last line."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the rows, and store each result; or write the table."""
    options = parse(args)
    if options.table:
        PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
        return 0
    limit_cores(1)
    conditions = {"date": date.today().isoformat(), "commit": commit(), "cpu": cpu()}  # before the first result
    for name in options.names or ROWS:
        store({"name": name, **conditions, **examine(name)})
        if not options.keep:
            shutil.rmtree(BUILD / name, ignore_errors=True)
    return 0


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.environments", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows, by default all: {', '.join(ROWS)}")
    parser.add_argument("--table", action="store_true", help="write the table of docs/environments.md")
    parser.add_argument("--keep", action="store_true", help="keep the virtual environments")
    options = parser.parse_args(args)
    if unknown := set(options.names) - ROWS.keys():
        parser.error(f"NAME must be a row of environments.yaml, got {', '.join(sorted(unknown))}.")
    return options


def examine(name: str) -> Result:
    """Install a row and run its commands, until one fails. Return what was seen."""
    row, folder = ROWS[name], BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result: Result = {}
    try:
        result["versions"] = install(row, folder)
        for key, value in attempts(row, folder):
            result[key] = value
    except FailedError as failed:
        result["error"] = str(failed)
    return result


def install(row: Result, folder: Path) -> dict[str, str]:
    """Install the packages of a row and this package. Return the versions that matter."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    (folder / "overrides.txt").write_text("\n".join(row.get("overrides", [])))
    (folder / "tasks.py").write_text(row.get("module", ""))
    python = folder / "bin" / "python"
    run([uv, "venv", "--quiet", "--allow-existing", "--python", str(row.get("python", "3.11")), str(folder)], folder)
    pinned = ["--overrides", "overrides.txt", "--exclude-newer", RELEASED, "--python", str(python), "--quiet"]
    wanted = [*PINS, *row["packages"], "--editable", str(ROOT)]
    run([uv, "pip", "install", "--system-certs", *pinned, *wanted], folder)
    lines = run([uv, "pip", "freeze", "--python", str(python)], folder).lower().splitlines()
    found = dict(line.split("==", 1) for line in lines if "==" in line)
    pins = [re.split(r"[=\[]", pin)[0].lower() for pin in row["packages"]]
    return {name: found[name] for name in dict.fromkeys([*pins, *LISTED]) if name in found}


def attempts(row: Result, folder: Path) -> Iterator[tuple[str, Any]]:
    """Measure the environment, train, resume at both points, and record. Yield names and results."""
    python, data = str(folder / "bin" / "python"), row["data"]
    try:
        script = str(ROOT / "benchmarks" / "environment_traits.py")
        text = run([python, script, json.dumps(data)], folder)
        found = json.loads(next(line for line in text.splitlines() if line.startswith('{"steps_per_second"')))
    except FailedError as failed:  # td3_lightning may still train, for example with wrappers
        found = {"error": str(failed)}
    yield "traits", found
    settings = {name: {**values, **row.get("fit", {}).get(name, {})} for name, values in SETTINGS.items()}
    settings["data"] |= data
    (folder / "row.yaml").write_text(yaml.safe_dump(settings))
    record = ["record", "--config", "row.yaml", "--episodes", "1", "--ckpt_path", saved("whole_1", "last")]
    for collect in COLLECTS if not found.get("used_equals_new") else COLLECTS[:1]:
        fit = ["fit", "--config", "row.yaml", "--collector.collect", str(collect), "--name"]
        commands = [[*fit, f"whole_{collect}"]]
        commands += [[*fit, f"resumed_{collect}", "--ckpt_path", saved(f"whole_{collect}", "last-1")]]
        commands += [record] if collect == 1 else []
        program = str(ROOT / "benchmarks" / "environment_commands.py")
        codes = json.loads(run([python, program, json.dumps(commands)], folder).strip().splitlines()[-1])
        logs = [(folder / f"{number}.log").read_text() for number in range(len(codes))]
        if any(codes[:2]):  # fit, or its resume
            raise FailedError(last_line(logs[-1]))
        yield "fit", "yes"
        equal = same(folder / saved(f"whole_{collect}", "last"), folder / saved(f"resumed_{collect}", "last"))
        warned = "warned" if "uninterrupted run" in logs[1] else "silent"
        yield f"resume {collect}", "bit-equal" if equal else f"differs, {warned}"
        if collect == 1:
            yield "video", "yes" if not codes[2] else f"no: {last_line(logs[2])}"


def saved(name: str, file: str) -> str:
    """Return the path of a checkpoint of a run."""
    return f"lightning_logs/{name}/version_0/checkpoints/{file}.ckpt"


def last_line(text: str) -> str:
    """Return the last line of an output that is not empty, without the folders of this machine."""
    line = (text.strip() or "no output").splitlines()[-1].strip()
    return re.sub(r"/[^\s()]*/(?=site-packages/|lib/python)", "", line)[:500]  # the folders of this machine


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command in a folder with one thread. Return its output, or raise `FailedError` with its last line."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    quiet = {"PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore", "SDL_VIDEODRIVER": "dummy", "JAX_PLATFORMS": "cpu"}
    variables = {"MUJOCO_GL": "egl", **os.environ, **threads, **quiet}
    limited = ["prlimit", f"--cpu={LIMIT}", *command]
    ended = subprocess.run(limited, cwd=folder, env=variables, capture_output=True, text=True)
    text = ended.stdout + ended.stderr
    with (folder / "log.txt").open("a") as log:
        log.write(f"$ {' '.join(command)}\n{text}\n")
    if ended.returncode:
        raise FailedError(f"{last_line(ended.stderr or text)} (exit code {ended.returncode})")
    return text


def same(one: Path, other: Path) -> bool:
    """Return whether two checkpoints hold the same weights, optimizer states and counters, to the last bit."""
    left, right = (dict(leaves(read_checkpoint(path))) for path in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint by their names, without the names of files."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, torch.Tensor):
            yield f"{name}/{key}", item
        elif isinstance(item, dict | list | tuple) and key not in ("callbacks", "ReplayData"):
            yield from leaves(item, f"{name}/{key}")


def store(result: Result) -> None:
    """Print a result, and replace its line in the file."""
    lines = {name: line for name, line in stored().items() if name in ROWS} | {result["name"]: result}
    RESULTS.write_text("".join(json.dumps(lines[name]) + "\n" for name in ROWS if name in lines))
    print(cells(result), flush=True)


def stored() -> dict[str, Result]:
    """Return the stored results by the names of their rows."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {each["name"]: each for each in map(json.loads, lines)}


def table() -> str:
    """Return the table of the page, in the order of environments.yaml."""
    rows = [HEADER, ["---"] * len(HEADER), *(cells(result) for result in stored().values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def cells(result: Result) -> list[str]:
    """Return the cells of a result: what its commands said, and what its row says."""
    row = ROWS[result["name"]]
    resumes = [result[f"resume {collect}"] for collect in COLLECTS if f"resume {collect}" in result]
    resume = "; at an episode's end: ".join(dict.fromkeys(resumes))
    data = yaml.safe_dump(row["data"], default_flow_style=True, width=1000, sort_keys=False).strip()
    rate = result.get("traits", {}).get("steps_per_second")
    video = result.get("video", "").split(":")[0]
    if video == "no" and "render_modes" not in result["video"]:
        video = "not finished"  # an error, or more than LIMIT
    return [
        ", ".join(row["packages"]).replace("==", " "),
        f"`{data}`",
        result.get("fit", row.get("no_fit", "no")),
        resume,
        video,
        f"{rate:,}" if rate else "",
        row.get("surprise", ""),
    ]


if __name__ == "__main__":
    sys.exit(main())
