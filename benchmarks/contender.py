"""python -m benchmarks.contender MODULE WORKLOAD [FLAG ...]: one contender's process, started by the runner."""

import sys
from importlib import import_module

from benchmarks.workloads import WORKLOADS

if __name__ == "__main__":
    module, workload, *flags = sys.argv[1:]
    import_module(f"benchmarks.contenders.{module}").train(WORKLOADS[workload], flags)
