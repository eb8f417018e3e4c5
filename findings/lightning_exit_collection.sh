#!/usr/bin/env bash
# A process that has imported Lightning spends a second of CPU time and more on its end.
#
# Versions: Lightning 2.6.6, PyTorch 2.13.0, Python 3.11.
#
# One expects that a program ends when its last line has run. Python then collects garbage among all objects that the imports have left.
# `gc.freeze()` after the import takes them out of these collections. Each forked child that ends without `os._exit` pays again.
# Consequence: a sweep, a test suite or a launcher of many short processes spends a second or more per process after the work is done.
#
# Output (a busy core; the numbers vary, the ratios less):
#   torch: 0.91 s of CPU time to end, 0.23 s after gc.freeze()
#   lightning.pytorch: 1.58 s of CPU time to end, 0.27 s after gc.freeze()
#   a forked child of the latter: 1.49 s, 0.41 s after gc.freeze()
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.13.0 lightning==2.6.6
"$folder/venv/bin/python" - <<'PYTHON'
import os
import statistics
import subprocess
import sys

PROGRAM = """
import gc, os, time
import {module}
if {freeze}:
    gc.freeze()
if {fork} and os.fork():
    used = os.wait3(0)[2]
    print(used.ru_utime + used.ru_stime)
    os._exit(0)
if not {fork}:
    print(time.process_time(), flush=True)
"""


def seconds_to_end(module, *, freeze, fork=False):
    """Return the CPU time of a process after its last line, or of a child that has no line to run."""
    values = []
    for _ in range(3):
        command = [sys.executable, "-c", PROGRAM.format(module=module, freeze=freeze, fork=fork)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        printed = float(process.stdout.read())
        used = os.wait4(process.pid, 0)[2]
        values.append(printed if fork else used.ru_utime + used.ru_stime - printed)
    return statistics.median(values)


ratios = []
for name, module, fork in (
    ("torch", "torch", False),
    ("lightning.pytorch", "lightning.pytorch", False),
    ("a forked child of the latter", "lightning.pytorch", True),
):
    plain, frozen = (seconds_to_end(module, freeze=freeze, fork=fork) for freeze in (False, True))
    to_end = "" if fork else " of CPU time to end"
    print(f"{name}: {plain:.2f} s{to_end}, {frozen:.2f} s after gc.freeze()")
    ratios.append(plain / frozen)
raise SystemExit(not (min(ratios) > 2))
PYTHON
