"""Progress bar of a run, and a line for each evaluation."""

import math
import sys
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from td3_lightning.reporting.console import echo, printable
from td3_lightning.training.collector import Collector
from td3_lightning.training.data_module import ReplayData


class Progress(ProgressBar):
    """One bar for the whole run, counted in environment steps, and a line that stays for every evaluation.

    Where the output is no terminal, there are the lines alone.

    Args:
        refresh_seconds: Least time between two drawings of the bar, in seconds.
    """

    def __init__(self, refresh_seconds: float = 0.2) -> None:
        super().__init__()
        self.refresh_seconds = refresh_seconds
        self.best: dict[str, float] = {}  # the best evaluation's return and env_steps
        self._enabled = True
        self._bar: Tqdm | None = None  # made when it is drawn first
        self._total: int | None = None  # where the bar is full
        self._drawn = 0.0  # when the bar was drawn last
        self._began = 0.0  # when `fit` began
        self._warmed_up = (0, 0.0)  # env_steps and time when updates began
        self._collector: Collector | None = None

    def disable(self) -> None:
        """Shows nothing from now on."""
        self._enabled = False

    def enable(self) -> None:
        """Shows the bar and the lines again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints above the bar."""
        with Tqdm.external_write_mode(file=sys.stdout):
            echo(*args, **kwargs)

    # Training.

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Opens the bar."""
        self._collector = next((c for c in trainer.callbacks if isinstance(c, Collector)), None)  # type: ignore[attr-defined]
        self._began, self._warmed_up = time.monotonic(), (0, 0.0)
        keepers: list[Any] = [each for each in trainer.checkpoint_callbacks if getattr(each, "monitor", None)]
        if keepers and all(each.best_model_score is None for each in keepers):
            self.best = {}  # it went on in a folder of its own, where the best ones begin anew
        self._open(_last_env_step(trainer, pl_module.env_steps, self._collector))
        self._draw(pl_module.env_steps, "warm-up")

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Starts the clock of the speed, the first time: warm-up steps are not like the others."""
        if not self._warmed_up[1]:
            self._warmed_up = (pl_module.env_steps, time.monotonic())

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        """Draws the bar if it is time."""
        if self._is_due():
            self._draw(pl_module.env_steps, self._standing(pl_module))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Leaves the last epoch's bar standing, before Lightning says why it stopped."""
        if trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs:
            self._draw(pl_module.env_steps, self._standing(pl_module))
            self._close()

    # Evaluation, within `fit` and by itself.

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Opens a bar of episodes for `validate`; in `fit` the bar stays."""
        if trainer.state.fn != "fit":
            self._open(self._episodes_in_all(trainer))

    def on_test_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Opens a bar of episodes."""
        self._open(self._episodes_in_all(trainer))

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Counts the episodes, where they take long enough to be seen."""
        if trainer.sanity_checking or not self._is_due():
            return
        counted = f"episode {batch_idx + 1} of {self._episodes_in_all(trainer)}"
        if trainer.state.fn == "fit":
            self._draw(pl_module.env_steps, f"evaluation: {counted}, {self._standing(pl_module)}")
        else:
            self._draw(batch_idx + 1, f"{counted}, return {_short(outputs['return'])}")

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Takes the bar of `validate` away."""
        if trainer.state.fn != "fit":
            self._close()

    on_test_epoch_end = on_validation_epoch_end

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Remembers the best evaluation and writes this one's line."""
        numbers = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if trainer.state.fn != "fit" or trainer.sanity_checking or "eval/return_mean" not in numbers:
            return
        line = self._evaluation_line(pl_module.env_steps, numbers["eval/return_mean"], numbers["eval/return_std"])
        if self._enabled:
            self._draw(pl_module.env_steps, self._standing(pl_module))
            self.print(line)

    def _evaluation_line(self, env_steps: int, mean: float, std: float) -> str:
        if mean > self.best.get("return", -math.inf):
            self.best = {"return": mean, "env_steps": env_steps}
            best = "the best so far"
        else:
            best = f"best {self.best['return']:,.2f} at {self.best['env_steps']:,}" if self.best else ""
        elapsed = Tqdm.format_interval(time.monotonic() - self._began)
        return f"{elapsed:>8}{env_steps:>10,} env_steps  return {mean:>9,.2f} ± {std:<7,.2f}  {best}"

    # State and ends.

    def state_dict(self) -> dict[str, Any]:
        """The best evaluation."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes it back."""
        self.best = dict(state_dict["best"])

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        """Leaves the bar where it is, so that what is printed next has a line of its own."""
        self._close()

    def teardown(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        """Closes the bar."""
        self._close()

    # The bar.

    def _open(self, total: int | None) -> None:
        self._close()
        self._total, self._drawn = total, time.monotonic()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _is_due(self) -> bool:
        return self._enabled and time.monotonic() - self._drawn >= self.refresh_seconds

    def _draw(self, done: int, text: str) -> None:
        if not self._enabled:
            return
        if self._bar is None:
            # disable=None means where the output is no terminal.
            self._bar = Tqdm(
                total=self._total,
                initial=done,
                desc=printable(text, sys.stdout),
                disable=None,
                file=sys.stdout,
                dynamic_ncols=True,
                leave=self.trainer.state.fn == "fit",
                bar_format="{percentage:3.0f}%|{bar}| {desc}",
            )
        if self._total is not None:
            self._bar.total = max(self._total, done)  # tqdm shows no bar beyond the total
        self._bar.n, self._drawn = done, time.monotonic()
        self._bar.set_description_str(printable(text, sys.stdout))

    def _standing(self, module: Any) -> str:
        """Where the run stands, in words; what matters most comes first, for narrow terminals."""
        of_all = f"/{self._total:,}" if self._total else ""
        parts = [f"{module.env_steps:,}{of_all} env_steps"]
        if self.best:
            parts.append(f"best {_short(self.best['return'])}")
        if self._collector is not None and math.isfinite(self._collector.last_return):
            parts.append(f"last {_short(self._collector.last_return)}")
        steps, began = self._warmed_up
        speed = (module.env_steps - steps) / max(time.monotonic() - began, 1e-9)
        if speed:
            parts.append(f"{speed:,.0f}/s")
        if speed and self._total:
            left = max(self._total - module.env_steps, 0) / speed
            parts.append(f"{Tqdm.format_interval(left)} left")
        return ", ".join([*parts, f"episodes {module.episodes:,}"])

    def _episodes_in_all(self, trainer: L.Trainer) -> int:
        return int(sum(trainer.num_test_batches if trainer.testing else trainer.num_val_batches))


def _short(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _last_env_step(trainer: L.Trainer, env_steps: int, collector: Collector | None) -> int | None:
    """Where `max_epochs` will end the run; None if nothing bounds it."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, ReplayData) or trainer.max_epochs is None or trainer.max_epochs < 0:
        return None
    loop = trainer.fit_loop  # epochs before this stage may have had another length
    done = loop.epoch_loop.batch_progress.current.ready if loop.restarted_mid_epoch else 0
    updates = (trainer.max_epochs - trainer.current_epoch) * int(trainer.num_training_batches) - done
    warmup = collector.warmup_steps if collector is not None else 0
    begin = env_steps + max(warmup - min(env_steps, data.replay.steps_stored), 0)

    def rounded_up(steps: float) -> int:
        return math.ceil(steps / data.num_envs) * data.num_envs

    return rounded_up(begin) + rounded_up(updates / data.updates_per_step)
