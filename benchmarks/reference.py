"""python -m benchmarks.reference: complete the index of the published runs from their metrics, and write its README.

`lightning_logs/reference/index.csv` has one row for each metrics file. A person enters `path`, `task`, `seed`, `note`,
`commit`, `added_by` and `cpu`, and leaves unknown values empty. This command computes the other columns. It computes
`settings`, the hash of the task's configuration, only for a new row, so that a later change of the configuration shows.
"""

import csv
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks.laps import Evaluation, read_rows
from benchmarks.records import markdown_table
from benchmarks.settings_hash import config_of, settings_hash
from benchmarks.workloads import ROOT

REFERENCE = ROOT / "lightning_logs" / "reference"
MEAN = "eval/return_mean"
ENTERED = ("path", "task", "seed", "note", "commit", "added_by", "cpu")
SHOWN = ("note", "commit", "added_by", "cpu", "settings")
COMPUTED = ("settings", "env_steps", "best_return", "best_at", "last_return")
INTRODUCTION = """# Published runs

[The results pages](../../docs/results/index.md) have the protocol and the tables of these runs. The files of a task are

```
<task>/config.yaml            the configuration
<task>/best.ckpt              the best checkpoint, without its replay buffer
<task>/curve.png              training and evaluation return
<task>/*.gif                  an episode
<task>/*.onnx                 the policy of a seed, if its checkpoint is too large
<task>/seeds/<seed>.csv.gz    the metrics of each seed
td7_ablation/                 evaluations of TD3 with each part of TD7, for docs/results/td7.md
superseded/                   evaluations of runs with earlier settings, for docs/experiment_log.md
index.csv                     the table below, with all columns
```

{checkpoints}

- `commit` is the commit that trained the run. Its `constraints.txt` pins the versions of all packages.
- `added by` is the commit that added its metrics.
- `best return`, `after` and `last return` are the best and the last evaluation, on the fixed evaluation seeds. The best
  one is a maximum and therefore biased upwards.
- `settings` is the hash of the run's configuration, which a test compares with the configuration that ships. A run
  with earlier settings, a first stage, an ablation and another environment have none.
- `env_steps` counts actions, at the last row of the metrics.
- An empty cell means that the value was not recorded.

This file is generated: edit `index.csv` and run `python -m benchmarks.reference`.
"""


def main() -> int:
    """Write index.csv and README.md."""
    rows = [complete(row) for row in read_index()]
    with (REFERENCE / "index.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ENTERED, *COMPUTED], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (REFERENCE / "README.md").write_text(readme(rows))
    return 0


def read_index() -> list[dict[str, str]]:
    """Return the rows of index.csv."""
    with (REFERENCE / "index.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def complete(row: dict[str, str]) -> dict[str, str]:
    """Return the row with the columns that follow from its metrics."""
    rows = read_rows(REFERENCE / row["path"])
    evaluations = [each for each in rows if each[MEAN]]
    best = max(evaluations, key=lambda each: float(each[MEAN]))
    returns = [f"{float(best[MEAN]):.1f}", best["env_steps"], f"{float(evaluations[-1][MEAN]):.1f}"]
    computed = [row.get("settings") or first_hash(row), last_step(rows), *returns]
    return {name: row[name] for name in ENTERED} | dict(zip(COMPUTED, computed, strict=True))


def first_hash(row: dict[str, str]) -> str:
    """Return the hash of the configuration, or an empty value for earlier settings and for another configuration."""
    differs = row["path"].startswith("superseded/") or row["note"] in ("first stage", "ablation", "another environment")
    return "" if differs else settings_hash(config_of(row["task"]))


def last_step(rows: Sequence[Evaluation]) -> str:
    """Return the environment steps of the last row."""
    return str(max(int(row["env_steps"]) for row in rows if row["env_steps"]))


def readme(rows: Sequence[dict[str, str]]) -> str:
    """Return the README: the layout and one table row for each run."""
    header = [
        "metrics",
        "note",
        "commit",
        "added by",
        "CPU",
        "settings",
        "env_steps",
        "best return",
        "after",
        "last return",
    ]
    absent = listed(without_checkpoint(REFERENCE))
    made = "The run marked as published made the curve and, if the folder has one, the checkpoint."
    text = f"{made} {absent} have no checkpoint."
    introduction = INTRODUCTION.format(checkpoints=textwrap.fill(text, 120))
    return f"{introduction}\n{markdown_table(header, list(map(cells, rows)))}\n"


def without_checkpoint(folder: Path) -> list[str]:
    """Return the tasks in a folder that have metrics and no checkpoint."""
    tasks = (path.parent for path in folder.glob("*/seeds"))
    return sorted(task.name for task in tasks if not (task / "best.ckpt").exists())


def listed(names: Sequence[str]) -> str:
    """Return names as code, with "and" before the last one."""
    *others, last = [f"`{name}`" for name in names]
    return f"{', '.join(others)} and {last}" if others else last


def cells(row: dict[str, str]) -> list[str]:
    """Return the cells of a run."""
    path, steps, after = row["path"], int(row["env_steps"]), int(row["best_at"])
    best, last = (f"{float(row[name]):,.1f}" for name in ("best_return", "last_return"))
    link = f"[{path.removesuffix('.csv.gz')}]({path})"
    return [link, *(row[name] for name in SHOWN), f"{steps:,}", best, f"{after:,}", last]


if __name__ == "__main__":
    sys.exit(main())
