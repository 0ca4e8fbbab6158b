"""`mlxdoctor watch`: follow a running training, and raise the alarm early."""

import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, EXIT_INCONCLUSIVE, options, output
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.evidence.source import require_file
from mlxdoctor.formats.escape import terminal
from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.alarms import Alarm
from mlxdoctor.watch.follow import Ending, Follower
from mlxdoctor.watch.growing_log import GrowingLog
from mlxdoctor.watch.process import find_process, is_alive, stop


@click.command(name="watch")
@click.argument("log", type=options.PATH, metavar="LOG")
@click.option("--iters", type=click.IntRange(1), help="How long it will be, if no line says.")
@click.option("--stop-pid", type=int, metavar="PID", help="End this process at an alarm.")
@click.option("--until-exit", type=int, metavar="PID", help="Watch until this process ends.")
@click.option(
    "--idle",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="End when the log has not grown for so long.",
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    metavar="N",
    help="Raise an alarm after N validations without a lower loss.",
)
@click.option("--no-follow", is_flag=True, help="Judge what is there, and end.")
@options.printed("text", "json")
def command(  # noqa: PLR0917 - click passes every option by name
    log: Path,
    iters: int | None,
    stop_pid: int | None,
    until_exit: int | None,
    idle: float | None,
    patience: int | None,
    no_follow: bool,
    printed: str,
) -> int:
    """Follow the log of a training, and end at the first report that is beyond doubt.

    LOG is a file that grows, in any format that `diagnose` reads. One that is not
    there yet is waited for.

    An alarm is one of: diverging, non-finite, frozen, exact-zero, swapping, and with --patience
    not-improving. Without it three validations that bring no lower loss are only remarked on,
    with the best validation and the save nearest to it. Each report is held against the same
    tables as by `diagnose`, the first three of a run and the last sixteen together. A spike of
    one or two reports is no alarm.

    --stop-pid sends SIGINT, as Ctrl-C does, then SIGTERM; never more. What stood in LOG before
    that process began is an older run's, and is passed over.

    Exit codes: 0 the training ended without an alarm, 1 an alarm or the training broke off,
    2 unusable input, 3 no report on training was found.

    \b
    Examples:
      mlx_lm.lora -c lora.yaml > train.log 2>&1 & mlxdoctor watch train.log --stop-pid $!
      mlxdoctor watch train.log || osascript -e 'display notification "look"'
      mlxdoctor watch finished.log --no-follow
    """
    target = find_process(stop_pid) if stop_pid is not None else None
    follows = find_process(until_exit) if until_exit is not None else target
    say = _Speaker(printed)
    if str(log) == "-":
        remedy = "write it into one as well, with `| tee train.log`, and watch that"
        raise InputError(None, "the log has to be a file", remedy)
    if no_follow:
        require_file(log)
    since = follows.create_time() if follows is not None else None
    growing = GrowingLog(log, since)
    with ProgressLine(lines=False) as progress:
        notify = partial(say.line, is_result=False)
        follower = Follower(growing, iters, patience, notify=notify, progress=progress)
        lives = {"is_alive": partial(is_alive, follows)} if follows is not None else {}
        ending = follower.run(idle_seconds=idle or math.inf, at_once=no_follow, **lives)
    if ending.alarm is not None:
        say.alarm(ending.alarm, iters or ending.iterations)
        if target is not None:
            stopped, sentence = stop(target)
            say.line("stop", sentence, stopped=stopped, pid=target.pid)
        return EXIT_FOUND
    say.end(ending)
    if ending.is_broken_off:
        return EXIT_FOUND
    return EXIT_CLEAN if ending.reports else EXIT_INCONCLUSIVE


class _Speaker:
    """Says what happens, as text for a person or as JSON lines for a program."""

    def __init__(self, printed: str) -> None:
        self._is_json = printed == "json"

    def line(self, event: str, text: str, *, is_result: bool = True, **more: Any) -> None:
        """An event; what is no result is said beside the output, or as an event of its own."""
        if self._is_json:
            click.echo(json.dumps({"event": event, "message": text, **more}))
        else:
            click.echo(terminal(text), err=not is_result)

    def alarm(self, alarm: Alarm, iterations: int | None) -> None:
        if self._is_json:
            click.echo(json.dumps({"event": "alarm", **alarm.to_dict(), "iterations": iterations}))
            return
        total = f" of {iterations:,}" if iterations else ""
        since = f", since {alarm.unit} {alarm.onset:,}" if alarm.onset != alarm.step else ""
        head = f"{alarm.verdict.value} at {alarm.unit} {alarm.step:,}{total}{since}"
        click.echo(output.style(terminal(head), "red", True))
        click.echo(terminal(alarm.message))
        click.echo(terminal(f"What to do: {alarm.advice}"))
        click.echo(terminal(f"By stopping now: {alarm.savings}."))

    def end(self, ending: Ending) -> None:
        text, best = ending.reason, None if ending.best is None else asdict(ending.best)
        if not self._is_json:
            upto = f"{ending.reports:,} reports up to {ending.unit} {ending.step:,}"
            text += (
                f"; no alarm in {upto}" if ending.reports else "; no report on training was found"
            )
            if ending.best is not None and ending.best.validations_since:
                text += f"; {ending.best}"
        counts: dict[str, Any] = {"reports": ending.reports, "step": ending.step, "best": best}
        self.line("end", text, **counts, broke_off=ending.is_broken_off)
