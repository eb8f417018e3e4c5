"""One file for each contender: `train(workload, flags)` builds its agent and runs its own normal loop for ever."""
