"""A program that behaves like `fit` for a sweep: it evaluates four times, saves, resumes, and can fail or be killed.

The file `plan.txt` of the working directory has lines such as `trial_3 value -100`, `trial_3 slope 2`,
`trial_0 pause 60` (seconds), `seed_1 fail x` and `trial_0 kill 2`, which kills the run once after the second
evaluation. With `trial_0 wait 60`, the run goes on after an evaluation when the file `read` in its folder has the
number of evaluations that the sweep has read, or after 60 seconds.
"""

import os
import signal
import sys
import time
from pathlib import Path

EVALUATIONS = 4


def resume_words(folder: Path) -> str:
    """Return the words with which a sweep resumes the run in a folder."""
    return f"--ckpt_path {folder}/version_0/checkpoints/last.ckpt --data.empty_replay false"


def main(words: list[str]) -> int:
    print("start", *words, flush=True)
    name = words[words.index("--name") + 1]
    version = Path("lightning_logs", name, "version_0")
    last, metrics = version / "checkpoints" / "last.ckpt", version / "metrics.csv"
    last.parent.mkdir(parents=True, exist_ok=True)
    lines = Path("plan.txt").read_text().splitlines() if Path("plan.txt").exists() else []
    plan = {line.split()[1]: line.split()[2] for line in lines if line.split()[0] == name.split("/")[-1]}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    done = int(last.read_text()) if "--ckpt_path" in words else 0
    rows = metrics.read_text().splitlines()[: done + 1] if done else ["env_steps,eval/return_mean"]
    for number in range(done, EVALUATIONS):
        rows.append(f"{100 * (number + 1)},{float(plan.get('value', 0)) + float(plan.get('slope', 1)) * number}")
        metrics.write_text("\n".join(rows) + "\n")
        last.write_text(str(number + 1))
        killed = version / "killed"
        if plan.get("kill") == str(number + 1) and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(plan.get("pause", 0)))
        deadline = time.monotonic() + float(plan.get("wait", 0))
        while time.monotonic() < deadline and _read(version.parent / "read") <= number:
            time.sleep(0.005)
    if "fail" in plan:
        print(plan["fail"])
        return 1
    return 0


def _read(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
