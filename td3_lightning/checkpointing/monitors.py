"""Check of the metrics that callbacks compare or write into file names, before a run begins."""

from collections.abc import Iterator
from difflib import get_close_matches

import lightning as L
from lightning.pytorch.callbacks import Callback

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.checkpointing.best import BestCheckpoint
from td3_lightning.checkpointing.file_names import metrics_of
from td3_lightning.envs.episode import Episode
from td3_lightning.errors import UsageError, shown
from td3_lightning.serialization.checkpoint_file import CLOCKS
from td3_lightning.training.data_module import ReplayData

RETURNS = ("eval/return_mean", "eval/return_std", "eval/return_min", "eval/return_max", "eval/length_mean")
KNOWN = (*RETURNS, *CLOCKS, "step", "epoch")  # metrics of every run
LIBRARIES = ("td3_lightning", "lightning")  # their callbacks log no other metrics


def check_monitors(trainer: L.Trainer, module: TD3, data: ReplayData) -> None:
    """Check the metrics that the callbacks of a run require.

    A number in the environment's `info` is the metric `eval/NAME`, and an environment may report it later in training.
    So only a name that resembles a metric of every run is refused, if one evaluation episode does not report it.
    `BestCheckpoint` refuses other names at the first evaluation. A callback of the user may log any metric, so nothing
    is checked beside one.

    Raises:
        UsageError: The run will not have such a metric.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if all(type(callback).__module__.split(".")[0] in LIBRARIES for callback in callbacks):
        for setting, metric in _required(callbacks):
            _check(setting, metric, module, data)


def _required(callbacks: list[Callback]) -> Iterator[tuple[str, str]]:
    """Yield the settings that name metrics, and the metrics."""
    for callback in callbacks:
        section = "checkpoint" if isinstance(callback, BestCheckpoint) else "trainer.callbacks"
        if isinstance(monitor := getattr(callback, "monitor", None), str):
            yield f"{section}.monitor", monitor
        yield from ((f"{section}.filename", name) for name in metrics_of(getattr(callback, "filename", None) or ""))


def _check(setting: str, metric: str, module: TD3, data: ReplayData) -> None:
    close = get_close_matches(metric, KNOWN, n=1, cutoff=0.8)
    if metric in KNOWN or (metric.startswith("eval/") and (not close or _is_reported(metric, module, data))):
        return
    raise UsageError(
        f"{setting} must name a metric, such as {', '.join(KNOWN)}, got {shown(metric)}. Use {(close or KNOWN)[0]}, or "
        "eval/NAME for a number in the info of the environment."
    )


def _is_reported(metric: str, module: TD3, data: ReplayData) -> bool:
    """Return whether the evaluation episode of an untrained policy reports a metric."""
    report = Episode(data.eval_env, data.eval_seeds[0]).play(module.act)
    return metric.removeprefix("eval/") in report
