"""What a check is, how checks are found, and how they are run.

A check is a module with one function decorated by `@check`: "Adding a check" in CONTRIBUTING.md
shows one. Beside signs it may yield what a figure shows (`Exhibit`), what was as it should be
(`Seen`, on which `healthy` rests), and what it could not look for (`Unsought`).
"""

import inspect
import sys
import time
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mlxdoctor.finding import (
    PLUGIN_FAULT,
    Exhibit,
    Finding,
    Outcome,
    Seen,
    Sign,
    Status,
    Symptom,
    Unsought,
)
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.limits import TimeLimitExceeded, time_limit
from mlxdoctor.safety.quoting import cut
from mlxdoctor.safety.reading_limits import current
from mlxdoctor.safety.stages import Stage, StageStopped
from mlxdoctor.safety.user_failure import failure_of
from mlxdoctor.tables import modules_of
from mlxdoctor.template import fill

ENTRY_POINT_GROUP = "mlxdoctor.checks"

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
#: What a check's function may yield.
Yield = Sign | Exhibit | Seen | Unsought


class Inconclusive(Exception):  # noqa: N818 - an outcome, not an error
    """Raised by a check that looked but found too little to decide."""


class NotApplicable(Exception):  # noqa: N818 - an outcome, not an error
    """Raised by a check whose question does not arise for this run."""


class DoesNotArise(NotApplicable):
    """Raised by a check for a run that cannot have what it looks for: nothing was fused, say."""


class EvidenceSource(Protocol):
    """What a check needs of a `Run`, which says what each of them is."""

    def get(self, kind: type[T]) -> T | None: ...

    def need(self, kind: type[T]) -> T: ...

    @property
    def is_planned(self) -> bool: ...


@dataclass(frozen=True)
class Requirement:
    """One parameter of a check: the evidence it takes."""

    parameter: str
    kind: type[Any]
    optional: bool


@dataclass(frozen=True)
class Check:
    """A check, ready to run.

    Attributes:
        name: the module's name with dashes.
        symptoms: every code it can report, with what is said of it once and for all.
        documentation: its module's docstring.
        marks_onset: whether the onset of a finding is where the loss began to go wrong.
        rerun_symptom: whether a rerun under a changed condition can have its findings or lack them.
    """

    name: str
    symptoms: Mapping[str, Symptom]
    documentation: str
    requirements: tuple[Requirement, ...]
    function: Callable[..., Iterable[Yield]] = field(repr=False)
    marks_onset: bool = False
    rerun_symptom: bool = False

    @property
    def needs_models(self) -> bool:
        """Whether evidence that it takes, optional or not, is measured by running a model."""
        return any(getattr(need.kind, "needs_models", False) for need in self.requirements)

    @property
    def trains(self) -> bool:
        """Whether evidence that it takes is measured by training: it is asked last."""
        return any(getattr(need.kind, "trains", False) for need in self.requirements)

    @property
    def cost(self) -> str:
        """What it takes: "instant" for files alone, "forward" for a running model."""
        return "forward" if self.needs_models else "instant"

    @property
    def title(self) -> str:
        """The first line of the documentation."""
        return self.documentation.strip().splitlines()[0].rstrip(".")

    def run(self, source: EvidenceSource) -> Outcome:
        """Run the check on `source`. Never raises: a crash is an outcome.

        So is a check that takes longer, its evidence included, than the limit
        `check_seconds` (in the main thread; see `time_limit`), or more memory than there is.
        """
        start = time.perf_counter()
        results: list[Finding | Exhibit | Seen | Unsought] = []
        status, reason, arises = Status.PASSED, "", True
        try:
            with Stage(f"the check {self.name}"), time_limit(current().check_seconds):
                results.extend(self._results(source))
        except Inconclusive as error:
            status, reason = Status.INCONCLUSIVE, str(error)
        except StageStopped as error:
            status, reason = Status.CRASHED, str(error)
        except (NotApplicable, InputError) as error:
            arises = not isinstance(error, DoesNotArise)
            status, reason = Status.SKIPPED, str(error)
        except TimeLimitExceeded as error:
            # Not inconclusive: evidence made to keep a check busy must not pass.
            remedy = "raise it with --limit check_seconds=N if the evidence is sound"
            status, reason = Status.CRASHED, f"{error}, the limit check_seconds; {remedy}"
        except MemoryError:
            status, reason = Status.CRASHED, "needed more memory than there is"
        except Exception as error:  # one check's bug must not hide the others' findings
            status, reason = Status.CRASHED, failure_of(error).sentence
        findings = [result for result in results if isinstance(result, Finding)]
        not_looked_for = [result for result in results if isinstance(result, Unsought)]
        unsought = {code: each.why for each in not_looked_for for code in each.symptoms}
        if status is Status.INCONCLUSIVE:
            # A fact found before the check gave up is still a fact; the rest was not looked for.
            reported = {finding.code for finding in findings}
            unsought = {code: reason for code in self.symptoms if code not in reported} | unsought
        if findings and status in (Status.PASSED, Status.INCONCLUSIVE):
            status = Status.FOUND
        return Outcome(
            check=self.name,
            status=status,
            reason=reason,
            # A check takes milliseconds: its time has a tenth of one.
            seconds=round(time.perf_counter() - start, 4),
            findings=tuple(sorted(findings, key=lambda finding: -finding.severity.rank)),
            exhibits=tuple(result for result in results if isinstance(result, Exhibit)),
            marks_onset=self.marks_onset,
            seen=tuple(result for result in results if isinstance(result, Seen)),
            unsought=unsought,
            arises=arises,
        )

    def _results(self, source: EvidenceSource) -> Iterator[Finding | Exhibit | Seen | Unsought]:
        """What the function yields for its evidence, its sentences filled and its codes whole."""
        arguments: dict[str, Any] = {}
        for requirement in self.requirements:
            find = source.get if requirement.optional else source.need
            arguments[requirement.parameter] = find(requirement.kind)
        for result in self.function(**arguments):
            match result:
                case Exhibit():
                    yield result
                case Seen():
                    yield replace(result, message=fill(result.message, result.measured))
                case Unsought():
                    yield replace(result, symptoms=tuple(map(self._declared, result.symptoms)))
                case Sign():
                    yield self._finding(result, is_planned=source.is_planned)

    def _declared(self, symptom: str) -> str:
        code = f"{self.name}.{symptom}"
        if code not in self.symptoms:
            raise ValueError(f"the check reported the undeclared code {code}")
        return code

    def _finding(self, sign: Sign, *, is_planned: bool) -> Finding:
        code = self._declared(sign.symptom)
        symptom = self.symptoms[code]
        values = {"where": sign.where, "onset": sign.onset, **sign.measured}
        return Finding(
            code,
            symptom.decided(sign.severity, is_planned=is_planned),
            cut(fill(symptom.says, values)),
            sign.measured,
            fill(symptom.expected, values) if sign.expected is None else sign.expected,
            sign.where,
            sign.onset,
            fill(symptom.fix, values) if sign.fix is None else sign.fix,
        )


def check(
    *, codes: Mapping[str, Symptom], marks_onset: bool = False, rerun_symptom: bool = False
) -> Callable[[Callable[..., Iterable[Yield]]], Check]:
    """Turn a function into a `Check` named after its module, as are its codes.

    Raises:
        TypeError: the function's annotations do not say which evidence it needs, or a code has
            no sentence.
    """

    def decorate(function: Callable[..., Iterable[Yield]]) -> Check:
        module = sys.modules[function.__module__]
        name = function.__module__.rsplit(".", 1)[-1].replace("_", "-")
        documentation = inspect.cleandoc(module.__doc__ or "")
        if not documentation:
            raise TypeError(f"the check {name} has no module docstring to explain it")
        if wordless := ", ".join(code for code, symptom in codes.items() if not symptom.says):
            raise TypeError(f"the check {name} has no sentence (says=) for {wordless}")
        return Check(
            name=name,
            symptoms={f"{name}.{code}": symptom for code, symptom in codes.items()},
            documentation=documentation,
            requirements=_requirements(function),
            function=function,
            marks_onset=marks_onset,
            rerun_symptom=rerun_symptom,
        )

    return decorate


def _requirements(function: Callable[..., Any]) -> tuple[Requirement, ...]:
    hints = typing.get_type_hints(function)
    requirements: list[Requirement] = []
    for parameter in inspect.signature(function).parameters:
        if (annotation := hints.get(parameter)) is None:
            raise TypeError(f"{function.__module__}: parameter {parameter} has no annotation")
        options = typing.get_args(annotation)
        is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        kinds = [option for option in options if option is not type(None)] if is_union else []
        kind = kinds[0] if len(kinds) == 1 else annotation
        if not isinstance(kind, type):
            raise TypeError(f"{function.__module__}: {parameter} must be one evidence class")
        requirements.append(Requirement(parameter, kind, optional=is_union))
    return tuple(requirements)


@cache  # A gate diagnoses many adapters.
def discover() -> tuple[Check, ...]:
    """All checks: the built-in ones and those of installed packages, by name.

    In place of a check that cannot be imported stands one that crashes and names its package.

    Raises:
        ValueError: two checks share a name, or two of them a code.
    """
    from importlib.metadata import entry_points

    checks = [check for module in modules_of("mlxdoctor.checks") for check in _checks_in(module)]
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            loaded = entry_point.load()
        except Exception as error:  # one package's bug must not hide what the others find
            loaded = _not_imported(entry_point, error)
        checks.extend([loaded] if isinstance(loaded, Check) else _checks_in(loaded))
    codes = Counter(code for check in checks for code in check.symptoms)
    if repeated := [code for code, count in codes.items() if count > 1]:
        raise ValueError(f"the code {repeated[0]} is reported by two checks: remove one of them")
    return tuple(sorted(checks, key=lambda check: check.name))


def _not_imported(entry_point: "EntryPoint", error: Exception) -> Check:
    package = entry_point.dist.name if entry_point.dist is not None else entry_point.module
    why = f"{PLUGIN_FAULT} {package}, not imported: {failure_of(error).sentence}"

    def refuse() -> Iterable[Yield]:
        raise StageStopped(None, why)

    return Check(entry_point.value, {}, why, (), refuse)


def _checks_in(module: types.ModuleType) -> list[Check]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, Check) and value.function.__module__ == module.__name__
    ]


def selected(checks: Iterable[Check], select: Iterable[str], ignore: Iterable[str]) -> list[Check]:
    """The checks that `--select` and `--ignore` leave, which name checks or codes.

    Raises:
        InputError: a pattern names nothing.
    """
    checks = list(checks)
    select, ignore = set(select), set(ignore)
    known = {name for check in checks for name in (check.name, *check.symptoms)}
    for pattern in sorted((select | ignore) - known):
        problem = f"no check and no code is called {pattern!r}"
        raise InputError(None, problem, "`mlxdoctor checks` lists them")
    return [
        check
        for check in checks
        if (not select or select & {check.name, *check.symptoms}) and check.name not in ignore
    ]
