"""What a check reports: findings, and the outcome they belong to."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any, ClassVar

from mlxdoctor.safety.quoting import without_quotations

#: A measured quantity: a number, a short text, or a short list of either.
Measurement = bool | int | float | str | tuple["int | float | str", ...] | None

#: Begins the name of a figure that is the value to set for a key of the configuration.
ADVISED = "advised_"
#: How the reason begins of a check that another package has and that can't be imported.
PLUGIN_FAULT = "a fault of the package"


class Severity(StrEnum):
    """How bad a finding is for the run that was examined."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error."""
        return tuple(Severity).index(self)

    def reaches(self, least: str) -> bool:
        """Whether it is at least as bad as `--fail-on` says; nothing reaches "never"."""
        return least != "never" and self.rank >= Severity(least).rank


class Status(StrEnum):
    """How a check ended. Only `PASSED` means that it looked and found nothing."""

    PASSED = "passed"
    FOUND = "found"
    SKIPPED = "skipped"
    INCONCLUSIVE = "inconclusive"
    CRASHED = "crashed"


#: The check looked: what it did not report is not there.
LOOKED = frozenset({Status.PASSED, Status.FOUND})


@dataclass(frozen=True)
class Symptom:
    """What a code stands for, said once, beside the code, in `@check(codes=...)`.

    `says`, `expected` and `fix` are templates, filled from what a sign measured (`template.py`).

    Attributes:
        meaning: what is wrong, in a few words: the list of checks shows it.
        severity: what it means for a run, as a rule.
        expected: what a sound run shows.
        fix: what to do about it; "nothing, ..." where a sound run shows it, too.
        says: the sentence that a report shows.
        in_a_plan: what it means before a run, where that is worse.
    """

    meaning: str
    severity: Severity
    expected: str = ""
    fix: str = ""
    says: str = ""
    in_a_plan: Severity | None = None

    @classmethod
    def error(cls, meaning: str, expected: str = "", fix: str = "", **more: Any) -> "Symptom":
        """One that a run does not survive, as a rule; `more` are fields, by name."""
        return cls(meaning, Severity.ERROR, expected, fix, **more)

    @classmethod
    def warning(cls, meaning: str, expected: str = "", fix: str = "", **more: Any) -> "Symptom":
        """One that does harm, or may; likewise."""
        return cls(meaning, Severity.WARNING, expected, fix, **more)

    @classmethod
    def info(cls, meaning: str, expected: str = "", fix: str = "", **more: Any) -> "Symptom":
        """One that is worth knowing; likewise."""
        return cls(meaning, Severity.INFO, expected, fix, **more)

    def decided(self, severity: Severity | None, *, is_planned: bool) -> Severity:
        """How bad it is, where one run decides its severity, or is only planned.

        A plan makes it worse by one step: what a check has called a note stays one.
        """
        found = severity or self.severity
        if not is_planned or self.in_a_plan is None or severity is Severity.INFO:
            return found
        return self.in_a_plan if self.in_a_plan.rank == found.rank + 1 else found


@dataclass(frozen=True)
class Sign:
    """One symptom as a check saw it in the evidence; the check's `Symptom` says the rest.

    `Sign("diverged", {"end": 9.98})`

    Attributes:
        symptom: its code without the check's name.
        measured: the figures that fill the symptom's sentence, by name.
        where: the tensor, layer, file or row it was seen in.
        onset: the iteration at which it began, where it has one.
        severity, expected, fix: in place of the symptom's own, where this run decides them.
    """

    symptom: str
    measured: Mapping[str, Measurement]
    where: str | None = None
    onset: int | None = None
    severity: Severity | None = None
    expected: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Seen:
    """What a check saw to be as it should: the ground a `healthy` stands on.

    Attributes:
        message: one sentence that a person understands: a template, filled from what was measured.
        learned: whether it shows that training made the model better; sound files alone do not.
        fell: whether it shows that the loss of the rows trained on came down, which is less.
        stood: whether it shows that the reward which was trained for did not rise.
    """

    message: str
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    learned: bool = False
    fell: bool = False
    stood: bool = False


@dataclass(frozen=True)
class Unsought:
    """Symptoms that a check, although it ran, could not look for: no cause is ruled out by them.

    Attributes:
        symptoms: their codes without the check's name.
        why: a clause: "the log has no validation loss".
    """

    symptoms: tuple[str, ...]
    why: str


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first of many names and how many more there are, as a sign's `where` or message."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


class Exhibit:
    """What a check measured that a report can show: the base of such frozen dataclasses.

    What `holds_text` of a run's rows and outputs is left out by `--no-text`.
    """

    holds_text: ClassVar[bool] = False


@dataclass(frozen=True)
class Finding:
    """One symptom, observed in the evidence: a `Sign`, with its `Symptom`. It never names a cause.

    Attributes:
        code: `check-name.symptom`; the module `checks/check_name.py` reports it.
        message: one sentence that a person understands, with the figures in it.
        fingerprint: a stable identity for baselines: of code and place as they were found,
            without any figure or quotation.
    """

    code: str
    severity: Severity
    message: str
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    expected: str = ""
    where: str | None = None
    onset: int | None = None
    fix: str = ""
    fingerprint: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.fingerprint:
            place = without_quotations(self.where or "")
            digest = hashlib.sha256(f"{self.code}\0{place}".encode()).hexdigest()
            object.__setattr__(self, "fingerprint", digest[:16])


@dataclass(frozen=True)
class Outcome:
    """What became of one check.

    Attributes:
        reason: why it was skipped, inconclusive or crashed; empty otherwise.
        findings: worst first.
        marks_onset: as in `Check`.
        unsought: codes that it could not look for although it ran -> why, as a clause.
        arises: whether its question arises for this run; else what it looks for cannot be there.
    """

    check: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    marks_onset: bool = False
    seen: tuple[Seen, ...] = ()
    unsought: Mapping[str, str] = field(default_factory=dict)
    arises: bool = True

    def looked_for(self, code: str) -> bool:
        """Whether one of its symptoms, if not among its findings, is not there."""
        return not self.arises or (self.status in LOOKED and code not in self.unsought)

    def to_dict(self) -> dict[str, Any]:
        """The outcome as the JSON report shows it: without what it measured for figures."""
        shown = ("check", "status", "reason", "seconds", "findings", "seen", "unsought")
        return {name: plain(getattr(self, name)) for name in shown}


def onset_of(outcomes: Iterable[Outcome], least: Severity) -> int | None:
    """The first iteration at which a finding at least so bad shows in the loss; None for none."""
    marking = (outcome for outcome in outcomes if outcome.marks_onset)
    findings = (finding for outcome in marking for finding in outcome.findings)
    bad = (finding.onset for finding in findings if finding.severity.rank >= least.rank)
    return min((onset for onset in bad if onset is not None), default=None)


def plain(value: Any) -> Any:
    """A value as JSON has it: dictionaries, lists, texts and numbers; NaN and infinity stay."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
