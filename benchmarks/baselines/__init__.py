"""Measured implementations, one file each: `train(workload, flags)` builds the agent and runs its endless loop."""
