"""Show the progress of a run, and print a line for each evaluation."""

import math
import shutil
import sys
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from td3_lightning.reporting.console import echo
from td3_lightning.training.collector import Collector

MIN_BAR = 10  # columns


class Progress(ProgressBar):
    """Show one progress bar for the updates of the run, and print a line for each evaluation.

    Only the lines are printed if the output is not a terminal.

    Args:
        refresh_seconds: Minimum time between two updates of the bar, in seconds.
    """

    def __init__(self, refresh_seconds: float = 0.2) -> None:
        super().__init__()
        self.refresh_seconds = refresh_seconds
        self.best: dict[str, float] = {}  # return and clock of the best evaluation
        self._enabled = True
        self._bar: Tqdm | None = None  # created when it is first drawn
        self._total: int | None = None  # updates or episodes at 100%
        self._last_draw = 0.0  # time in seconds
        self._start_time = 0.0  # of `fit`
        self._first_update: tuple[int, int, float] | None = None  # clock, updates and time at the first one
        self._collector: Collector | None = None

    def disable(self) -> None:
        """Disable the bar and the lines. Lightning calls it on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Enable the bar and the lines."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar."""
        with Tqdm.external_write_mode(file=sys.stdout):
            echo(*args, **kwargs)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Open the bar."""
        self._collector = next((c for c in trainer.callbacks if isinstance(c, Collector)), None)  # type: ignore[attr-defined]
        self._start_time, self._first_update = time.monotonic(), None
        checkpoints: list[Any] = [each for each in trainer.checkpoint_callbacks if getattr(each, "monitor", None)]
        if checkpoints and all(each.best_model_score is None for each in checkpoints):
            self.best = {}  # resumed in a new folder, which has no best checkpoint yet
        limit = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs > 0 else None
        self._open(limit and limit * int(trainer.num_training_batches))
        self._draw(trainer.current_epoch * int(trainer.num_training_batches), "warm-up")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        """Update the bar if `refresh_seconds` have passed."""
        self._first_update = self._first_update or (pl_module.clock, self._updates(), time.monotonic())
        if self._is_due():
            self._draw_run()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Finish the bar after the last epoch, before Lightning logs why the run stopped."""
        if trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs:
            self._draw_run()
            self._close()

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Open a bar of episodes in `validate` and `test`. `fit` keeps its bar."""
        if trainer.state.fn != "fit":
            self._open(self._num_episodes(trainer))

    on_test_start = on_validation_start

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Show the number of the episode if `refresh_seconds` have passed."""
        if trainer.sanity_checking or not self._is_due():
            return
        counted = f"episode {batch_idx + 1} of {self._num_episodes(trainer)}"
        if trainer.state.fn == "fit":
            self._draw_run(f"evaluation: {counted}, ")
        else:
            self._draw(batch_idx + 1, f"{counted}, return {_short(outputs['return'])}")

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Close the bar of `validate`."""
        if trainer.state.fn != "fit":
            self._close()

    on_test_epoch_end = on_validation_epoch_end

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Update the best evaluation, and print this one in at most 80 columns."""
        numbers = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if trainer.state.fn != "fit" or trainer.sanity_checking or "eval/return_mean" not in numbers:
            return
        mean, clock, best = numbers["eval/return_mean"], pl_module.clock, "the best so far"
        if mean > self.best.get("return", -math.inf):
            self.best = {"return": mean, "env_steps": clock}
        else:
            best = f"best {_short(self.best['return'])} at {self.best['env_steps']:,}" if self.best else ""
        elapsed = Tqdm.format_interval(time.monotonic() - self._start_time)
        several = self._num_episodes(trainer) > 1  # one episode has no spread, and all processes play the same
        spread = f" ± {numbers['eval/return_std']:<6,.2f}" if several else ""
        if self._enabled:
            self._draw_run()
            self.print(f"{elapsed:>8}{clock:>10,} {pl_module.clock_name} return{mean:>10,.2f}{spread} {best}")

    def state_dict(self) -> dict[str, Any]:
        """Return the best evaluation."""
        return {"best": dict(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best evaluation."""
        self.best = dict(state_dict["best"])

    def teardown(self, trainer: L.Trainer, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Close the bar, so that the next output starts on a new line."""
        self._close()

    on_exception = teardown

    def _open(self, total: int | None) -> None:
        self._close()
        self._total, self._last_draw = total, time.monotonic()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _is_due(self) -> bool:
        return self._enabled and time.monotonic() - self._last_draw >= self.refresh_seconds

    def _draw(self, done: int, text: str) -> None:
        if not self._enabled:
            return
        if self._bar is None:
            # disable=None disables the bar if the output is not a terminal.
            self._bar = Tqdm(
                total=self._total,
                initial=done,
                desc=_fitting(text),
                disable=None,
                file=sys.stdout,
                dynamic_ncols=True,
                leave=self.trainer.state.fn == "fit",
                bar_format="{percentage:3.0f}%|{bar}| {desc}",
            )
        if self._total is not None:
            self._bar.total = max(self._total, done)  # tqdm shows no bar beyond the total
        self._bar.n, self._last_draw = done, time.monotonic()
        self._bar.set_description_str(_fitting(text))

    def _draw_run(self, prefix: str = "") -> None:
        """Draw the bar of `fit`, the most important numbers first. A narrow terminal leaves out the end."""
        module: Any = self.trainer.lightning_module
        done, now = self._updates(), time.monotonic()
        parts = [f"{prefix}{module.clock:,} {module.clock_name}"]
        if self.best:
            parts.append(f"best {_short(self.best['return'])}")
        if self._collector is not None and math.isfinite(self._collector.last_return):
            parts.append(f"last {_short(self._collector.last_return)}")
        clock, updates, began = self._first_update or (module.clock, done, now)
        if self._total and done > updates:
            left = max(self._total - done, 0) * (now - began) / (done - updates)
            parts.append(f"{Tqdm.format_interval(left)} left")
        if module.clock > clock:
            parts.append(f"{(module.clock - clock) / (now - began):,.0f}/s")
        self._draw(done, ", ".join([*parts, f"episodes {module.episodes:,}"]))

    def _updates(self) -> int:
        """Return the updates of all epochs, as if all had the length of this one."""
        epochs, progress = self.trainer.current_epoch, self.trainer.fit_loop.epoch_loop.batch_progress
        return epochs * int(self.trainer.num_training_batches) + int(progress.current.ready)

    def _num_episodes(self, trainer: L.Trainer) -> int:
        return int(sum(trainer.num_test_batches if trainer.testing else trainer.num_val_batches))


def _fitting(text: str) -> str:
    """Leave out the last parts of a text that do not fit beside the bar."""
    room = shutil.get_terminal_size().columns - len("100%|| ") - MIN_BAR
    parts = text.split(", ")
    while len(parts) > 1 and len(", ".join(parts)) > room:
        parts.pop()
    return ", ".join(parts)


def _short(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
