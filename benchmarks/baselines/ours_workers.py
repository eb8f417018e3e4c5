"""td3_lightning with several environments, timed at the updates, because other processes may step the environments."""

from benchmarks.baselines.ours import data_settings, fit
from benchmarks.workloads import Workload

STOPWATCH = "benchmarks.baselines.ours_stopwatch.CountUpdates"


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    fit(workload, data_settings(workload) | {"num_envs": workload.num_envs}, STOPWATCH, flags)
