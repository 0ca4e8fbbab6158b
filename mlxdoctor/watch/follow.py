"""Following a log until its training raises an alarm or is over."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from mlxdoctor.formats.summary import sentence
from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.alarms import Alarm, AlarmKind, Best
from mlxdoctor.watch.growing_log import GrowingLog, Stamp, rows_of
from mlxdoctor.watch.monitor import Watch

#: Validations without a lower loss after which that is said, once.
REMARKED_AFTER = 3
#: Seconds between two looks at the log, and how many times the seconds that reading it took.
POLL_SECONDS, REST = 0.5, 10.0


@dataclass(frozen=True)
class Ending:
    """How the watch on a log ended.

    Attributes:
        reason: in words: "the training finished".
        is_broken_off: whether the log says that the training broke off.
        reports: how many were read.
        step: of the last one.
        iterations: how long the training is to be, where that is known.
        best: the best validation, and the save nearest to it.
    """

    reason: str
    alarm: Alarm | None = None
    is_broken_off: bool = False
    reports: int = 0
    step: int = 0
    unit: str = "iteration"
    iterations: int | None = None
    best: Best | None = None


@dataclass
class Follower:
    """Reads a log whenever it has grown, and judges every report of its newest run.

    Attributes:
        iterations: how long the training is to be; None for what the log says.
        patience: as for `Watch`.
        notify: told in a sentence what is no alarm and worth knowing: "waiting" for what is not
            there or could not be read, or a "remark", with its figures by name.
        clock: seconds that only ever rise.
    """

    log: GrowingLog
    iterations: int | None = None
    patience: int | None = None
    notify: Callable[..., None] = lambda _event, _text, **_figures: None
    progress: Callable[[str, int, int], None] = lambda _label, _done, _total: None
    clock: Callable[[], float] = time.monotonic
    _remarked_at: int = -1
    _told: set[str] = field(default_factory=set)

    def run(
        self,
        is_alive: Callable[[], bool] = lambda: True,
        idle_seconds: float = math.inf,
        *,
        at_once: bool = False,
    ) -> Ending:
        """Follow the log to an alarm or to its end.

        Args:
            is_alive: whether the process that trains still runs.
            idle_seconds: without a word from the log after which it ends.
            at_once: end at the end of what is there already.

        Raises:
            InputError: it can't be read.
        """
        seen: Stamp | None = None
        is_whole, has_waited = True, False
        heard, pause, now = self.clock(), POLL_SECONDS, Ending("")
        while True:
            was_alive = is_alive()
            stamp = self.log.stamp()
            begun = self.clock()
            if stamp is None and seen is None and not has_waited and not at_once:
                self.notify("waiting", f"{self.log.path} is not there yet; waiting for it")
                has_waited = True
            is_last = at_once or not was_alive
            if stamp is not None and (stamp != seen or not is_whole):
                # What is written at this moment may be half a line: it is read when it is quiet.
                is_whole = is_last or stamp == seen
                heard = heard if stamp == seen else begun
                now, seen = self._read(now, stamp, is_whole=is_whole), stamp
                if now.reason:
                    return now
                pause = max(POLL_SECONDS, REST * (self.clock() - begun))
            if at_once:
                return replace(now, reason="the log ends here")
            if not was_alive:
                return replace(now, reason="the process that trains has ended")
            if self.clock() - heard >= idle_seconds:
                return replace(now, reason=f"the log has not grown for {idle_seconds:g} seconds")
            self.log.wait(pause)

    def _read(self, before: Ending, stamp: Stamp, *, is_whole: bool) -> Ending:
        """What the log says by now; without a reason where the training goes on."""
        try:
            state = self.log.read(stamp, is_whole=is_whole)
        except InputError:
            if self.log.stamp() == stamp:
                raise
            # It was cut or replaced while it was read.
            return before
        for problem in state.problems:
            if problem not in self._told:
                self.notify("waiting", problem)
        self._told.update(state.problems)
        now, alarm, trained_to = before, None, 0
        if (run := state.run) is not None:
            total, rows = self.iterations or run.announced_iterations, rows_of(run)
            watch = Watch(total, self.patience, unit=run.unit)
            # All of it each time: a log may be cut or replaced, and its last report grows.
            alarm = next(filter(None, [watch.see(row) for row in rows]), None)
            if (best := watch.best) is not None:
                # Of two saves that are as near the earlier one, and none that is lost.
                is_lost = alarm is not None and alarm.verdict is not AlarmKind.NOT_IMPROVING
                onset = alarm.onset if alarm is not None and is_lost else math.inf
                saves = [(abs(save - best.step), save) for save in state.saves if save < onset]
                best = replace(best, save=min(saves)[1] if saves else None)
            trained_to = max((row.step for row in rows if "train_loss" in row.values), default=0)
            now = Ending("", None, False, run.reports, rows[-1].step, run.unit, total, best)
            self.progress("watching", now.step, total or now.step)
        best = now.best
        if best and best.validations_since >= REMARKED_AFTER and best.step != self._remarked_at:
            self._remarked_at = best.step
            self.notify("remark", sentence(str(best)), best=asdict(best))
        if state.begins_anew:
            return now
        if alarm is not None:
            if alarm.verdict is AlarmKind.NOT_IMPROVING and best is not None:
                # It names the save nearest to the best validation.
                alarm = replace(alarm, message=sentence(str(best)))
            return replace(now, reason="an alarm was raised", alarm=alarm)
        if state.failure is not None:
            reason = f"the training broke off ({state.failure.kind}): {state.failure.text}"
            return replace(now, reason=reason, is_broken_off=True)
        has_finished = now.iterations and trained_to >= now.iterations
        return replace(now, reason="the training finished") if has_finished else now
