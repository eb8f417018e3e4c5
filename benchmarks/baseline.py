"""python -m benchmarks.baseline MODULE WORKLOAD [FLAG ...]: the process of one measured implementation."""

import sys
from importlib import import_module

from benchmarks.workloads import WITH_WORKERS, WORKLOADS

if __name__ == "__main__":
    module, workload, *flags = sys.argv[1:]
    import_module(f"benchmarks.baselines.{module}").train((WORKLOADS | WITH_WORKERS)[workload], flags)
