"""One item examined: what a worker does, in whichever process or machine it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxdoctor.report import Report
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.limits import TimeLimitExceeded, time_limit
from mlxdoctor.safety.quoting import quoted, without_quotations
from mlxdoctor.safety.stages import Kind, Stage, StageStopped


@dataclass(frozen=True)
class Options:
    """How a gate works, as the options of the command say it.

    Attributes:
        seconds: the time an item may take; static checks read a 1 GB adapter in a few.
        base, data, budget: as `mlxdoctor.Options` has them, where items do not name their own.
    """

    generate: bool = False
    jobs: int | None = None
    cluster: str | None = None
    seconds: float = 300.0
    with_text: bool = True
    base: Path | None = None
    data: Path | None = None
    budget: float | None = None


@dataclass(frozen=True)
class Examined:
    """What came of it: a report, or a sentence that says why there is none."""

    report: Report | None
    problem: str
    seconds: float


#: Examines an item, an adapter, run or file, by its path.
Function = Callable[[str], Examined]


def examine(item: str, options: Options) -> Examined:
    """Examine one item, by its path. Never raises for what is wrong with it."""
    # Not by the process that hands out the work: NumPy alone takes as long to import as ten items.
    from mlxdoctor.api import diagnose
    from mlxdoctor.preflight import preflight
    from mlxdoctor.preflight.configuration import is_plan

    start = time.perf_counter()

    def in_time(_: str, __: int, ___: int) -> None:
        # A check that ran into the alarm is an outcome like others; the next one is not begun.
        if time.perf_counter() - start > options.seconds:
            raise TimeLimitExceeded(options.seconds)

    stage = Stage(f"examining {item}", Kind.ITEM, limit="", wall=options.seconds)
    report: Report | None = None
    problem = ""
    path = Path(item)
    try:
        with stage, time_limit(options.seconds):
            given: dict[str, Any] = {"with_text": options.with_text, "progress": in_time}
            given |= {"base": options.base, "data": options.data}
            if is_plan(path):
                # Nobody trains in CI.
                whole = preflight(path, elsewhere=True, **given)
            else:
                # What passes is held against its rows and its log even where a cause is clear: a
                # policy may let that cause through.
                given |= {"allow_model": options.generate, "budget": options.budget}
                whole = diagnose([path], replay=True, **given)
        in_time("", 0, 0)
        # Without what only a page about one run shows: a gate holds thousands.
        outcomes = tuple(replace(outcome, exhibits=()) for outcome in whole.outcomes)
        report = replace(whole.alone, outcomes=outcomes)
    except StageStopped as stopped:
        problem = f"{item}: {stopped}"
    except InputError as error:
        problem = str(error)
    except TimeLimitExceeded:
        remedy = "allow more with --time-limit, or look at it with `mlxdoctor diagnose`"
        problem = f"{item}: took longer than {options.seconds:g} s; {remedy}"
    except MemoryError:
        problem = f"{item}: there was not enough memory to examine it"
    except Exception as error:  # one item's bug must not hide the others' findings
        bug = f"{type(error).__name__}: {quoted(str(error))}"
        problem = f"{item}: mlxdoctor itself failed on it ({bug}); please report this as a bug"
    if not options.with_text:
        problem = without_quotations(problem)
    return Examined(report, problem, time.perf_counter() - start)
