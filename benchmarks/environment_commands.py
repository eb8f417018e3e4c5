"""Run commands of td3_lightning, each in a fork of one process, because the imports take longer than the commands.

The argument is a JSON list of lists of words. The output of command N goes to N.log, and the exit codes are printed as
JSON. The first command that fails ends the program.
"""

import json
import os
import sys
import traceback

import lightning
import matplotlib.pyplot
import torch
import torchmetrics

import td3_lightning.training.data_module
from td3_lightning.cli.app import main

LOADED = (lightning, matplotlib, torch, torchmetrics, td3_lightning)  # before the forks


def run(words: list[str], log: str) -> int:
    """Run a command in a fork, and return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    codes: list[int] = []
    for number, command in enumerate(json.loads(sys.argv[1])):
        codes.append(run(command, f"{number}.log"))
        if codes[-1]:
            break
    print(f"\n{json.dumps(codes)}")
