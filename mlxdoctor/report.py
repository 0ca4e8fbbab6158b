"""What a report is: values all the way down, that every format and the gate take as they are.

Numbers may be NaN or infinite here; `formats.strict_json` says how they are written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.exhibits import FIGURES, LossCurve, SampleAnswer
from mlxdoctor.finding import Exhibit, Finding, Outcome, Seen, Severity, onset_of, plain
from mlxdoctor.verdict import (
    CauseStatus,
    Coverage,
    Experiment,
    NextCheck,
    Readiness,
    Rerun,
    Verdict,
)

#: Rises when a key of `to_dict` changes its meaning or goes away.
SCHEMA_VERSION = 3

X = TypeVar("X", bound=Exhibit)


@dataclass(frozen=True)
class FileRead:
    """A file that was read as evidence. `sha256` is None where `note` says why."""

    kind: str
    source: str
    sha256: str | None
    note: str


@dataclass(frozen=True)
class MissingEvidence:
    """Evidence that was not there; `why` is a clause that says what would provide it."""

    kind: str
    why: str


@dataclass(frozen=True)
class Fix:
    """A change of configuration keys, and the same as a unified diff.

    A key with dots is nested: `lora_parameters.scale`.
    """

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    diff: str


@dataclass(frozen=True)
class Planned:
    """What is said of a run that has not begun.

    Attributes:
        open_because: what could not be looked at, as a clause; "" for nothing.
        facts: what the plan comes to, a sentence each.
    """

    readiness: Readiness
    open_because: str = ""
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is said of one run.

    Attributes:
        outcomes: of every check, with what it measured for the figures.
        diagnosis: best first.
        left_out: what the time for running models did not allow, a clause each.
        commands: that make this report again.
        versions: package -> version, of what trained and of what examined.
        unreadable: files that could not be read, a sentence each.
        withheld: whether it is without rows and outputs.
        planned: None of a run that was made.
    """

    name: str
    verdict: Verdict
    outcomes: tuple[Outcome, ...]
    diagnosis: tuple[Diagnosed, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    evidence: tuple[FileRead, ...] = ()
    missing: tuple[MissingEvidence, ...] = ()
    left_out: tuple[str, ...] = ()
    experiments: tuple[Experiment, ...] = ()
    fix: Fix | None = None
    next: NextCheck | None = None
    commands: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    withheld: bool = False
    version: str = ""
    planned: Planned | None = None

    @property
    def findings(self) -> list[Finding]:
        """All findings, worst first, otherwise in the order of the checks."""
        findings = [finding for outcome in self.outcomes for finding in outcome.findings]
        return sorted(findings, key=lambda finding: -finding.severity.rank)

    @property
    def suspected(self) -> Diagnosed | None:
        """The cause that a suspect run may have; None for a run that is not suspect."""
        return self._first if self.verdict is Verdict.SUSPECT else None

    @property
    def root(self) -> Diagnosed | None:
        """The cause that explains the failure best; None where none does, or nothing failed."""
        is_named = self.verdict is Verdict.UNHEALTHY and self._first and self._first.is_nameable
        return self._first if is_named else None

    @property
    def _first(self) -> Diagnosed | None:
        """The first cause; None where experiments refuted every one that is listed."""
        first = self.diagnosis[0] if self.diagnosis else None
        return None if first is not None and first.confirmation == "refuted" else first

    @property
    def seen(self) -> list[Seen]:
        """What was seen to be as it should, learning first."""
        seen = [sound for outcome in self.outcomes for sound in outcome.seen]
        return sorted(seen, key=lambda sound: not sound.learned)

    def causes(self, status: CauseStatus) -> list[Coverage]:
        """The causes of one status, in the knowledge base's order."""
        return [covered for covered in self.coverage if covered.status is status]

    @property
    def onset(self) -> int | None:
        """Where the loss begins to go wrong, as the checks that can tell say; None for nowhere."""
        return onset_of(self.outcomes, Severity.WARNING)

    @property
    def figures(self) -> dict[str, Exhibit]:
        """Name -> what the figure shows, for those whose check had something to measure."""
        shown = {name: self.exhibit(kind) for name, kind in FIGURES.items()}
        if isinstance(loss := shown["loss"], LossCurve):
            shown["loss"] = replace(loss, onset=self.onset)
        return {name: exhibit for name, exhibit in shown.items() if exhibit is not None}

    @property
    def reruns(self) -> tuple[Rerun, ...]:
        """The reruns among the experiments."""
        return tuple(tried for tried in self.experiments if isinstance(tried, Rerun))

    @property
    def sample(self) -> SampleAnswer | None:
        """One prompt and the answers to it."""
        return self.exhibit(SampleAnswer)

    def exhibit(self, kind: type[X]) -> X | None:
        """What a check measured, of one kind; None where none did."""
        every = (exhibit for outcome in self.outcomes for exhibit in outcome.exhibits)
        return next((exhibit for exhibit in every if isinstance(exhibit, kind)), None)

    @property
    def alone(self) -> "Report":
        """The report without the run that it may come with: what can be pickled."""
        return Report(**{part.name: getattr(self, part.name) for part in fields(Report)})

    def to_dict(self) -> dict[str, Any]:
        """The report as `--stdout json` writes it: plain dictionaries, lists and values."""
        as_they_are = (
            *("verdict", "coverage", "diagnosis", "outcomes", "experiments", "name", "fix"),
            *("sample", "next", "commands", "versions", "unreadable", "withheld", "planned"),
        )
        of_the_run = ("evidence", "missing", "left_out")
        # In Markdown, as in causes.toml.
        texts = ("title", "summary", "explanation", "remedy")
        causes = [diagnosed.cause for diagnosed in self.diagnosis]
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "mlxdoctor", "version": self.version},
            **{name: plain(getattr(self, name)) for name in as_they_are},
            "run": {name: plain(getattr(self, name)) for name in of_the_run},
            "causes": {one.id: {text: getattr(one, text) for text in texts} for one in causes},
            "figures": {name: plain(self.figures.get(name)) for name in FIGURES},
        }
