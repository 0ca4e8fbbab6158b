"""The watch inside mlx-lm: a callback for `mlx_lm.tuner.trainer.train`.

    from mlxdoctor import TrainingStopped, WatchCallback

    watch = WatchCallback("adapters/train.jsonl", iterations=args.iters, stop=True)
    try:
        train(model, optimizer, train_set, valid_set, args, training_callback=watch)
    except TrainingStopped as stopped:
        print(stopped.alarm.message)

What a callback raises is all that ends mlx-lm's loop. The last checkpoint that was saved stays; the
final save is not made.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlxdoctor.watch.alarms import Alarm
from mlxdoctor.watch.monitor import LogRow, Watch

#: What mlx-lm calls a metric, where that is not its canonical name.
_NAMES = {"peak_memory": "peak_memory_gb", "val_time": "val_seconds"}


class TrainingStopped(Exception):  # noqa: N818 - it stops a training that went wrong
    """Raised by `WatchCallback(stop=True)` to end mlx-lm's loop.

    Attributes:
        alarm: what was raised.
    """

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        super().__init__(f"{alarm.verdict.value}: {alarm.message} {alarm.advice}")


class WatchCallback:
    """Records every report of a training, and raises the alarm when one is beyond doubt.

    Each report becomes one line of JSON, with what the table of newer mlx-lm leaves out, too;
    `mlxdoctor diagnose` reads it. A fault of the watch itself is told once on standard error and
    never ends a training.

    Args:
        record: the file to append to; None records nothing. In a distributed training only
            the first process writes.
        wrapped: another callback, mlx-lm's `TrainingCallback` or anything with its two methods.
            It gets every report, after the watch has; what it raises goes on to the trainer as it
            would without the watch.
        iterations: how long the training is to be, to say what stopping saves.
        stop: raise `TrainingStopped` at an alarm. Otherwise it is told on standard error, once.

    Attributes:
        alarm: the first alarm, or None.
    """

    def __init__(
        self,
        record: str | os.PathLike[str] | None = "train.jsonl",
        wrapped: Any = None,
        *,
        iterations: int | None = None,
        stop: bool = False,
    ) -> None:
        self.alarm: Alarm | None = None
        self._record = Path(record) if record is not None else None
        self._wrapped = wrapped
        self._stop = stop
        self._watch = Watch(iterations)
        self._started = time.monotonic()
        self._has_failed = False

    def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
        """Record and judge a report on the training loss, and pass it on.

        Raises:
            TrainingStopped: it leaves no doubt, and `stop` was asked for.
        """
        self._report("on_train_loss_report", train_info)

    def on_val_loss_report(self, val_info: dict[str, Any]) -> None:
        """Likewise a report on the validation loss."""
        self._report("on_val_loss_report", val_info)

    def _report(self, method: str, told: dict[str, Any]) -> None:
        self._guard(self._see, told)
        if self._wrapped is not None:
            getattr(self._wrapped, method)(told)
        if self._stop and self.alarm is not None:
            raise TrainingStopped(self.alarm)

    def _see(self, told: Mapping[str, Any]) -> None:
        # Numbers of Python's own, where mlx or NumPy gave one of theirs.
        row = {
            name: value.item() if hasattr(value, "item") else value for name, value in told.items()
        }
        self._guard(self._write, {**row, "seconds": round(time.monotonic() - self._started, 3)})
        numbers = {
            _NAMES.get(name, name): float(value)
            for name, value in row.items()
            if name != "iteration" and isinstance(value, int | float)
        }
        alarm = self._watch.see(LogRow(int(row["iteration"]), numbers))
        if alarm is None or self.alarm is not None:
            return
        self.alarm = alarm
        self._guard(self._write, {"alarm": alarm.to_dict()})
        print(
            f"mlxdoctor: {alarm.verdict.value} at iteration {alarm.step:,}: {alarm.message} "
            f"What to do: {alarm.advice} By stopping now: {alarm.savings}.",
            file=sys.stderr,
        )

    def _write(self, row: Mapping[str, Any]) -> None:
        core = sys.modules.get("mlx.core")
        is_first_process = core is None or core.distributed.init().rank() == 0
        if self._record is None or not is_first_process:
            return
        self._record.parent.mkdir(parents=True, exist_ok=True)
        with self._record.open("a", encoding="utf-8") as file:
            # One write a line: a run that is killed leaves whole lines.
            file.write(json.dumps(row, default=str) + "\n")

    def _guard(self, act: Callable[[Any], None], argument: Any) -> None:
        try:
            act(argument)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                traceback.print_exc()
                print("mlxdoctor: the watch failed; the training goes on", file=sys.stderr)
