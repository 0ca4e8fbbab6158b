"""What a report consists of: one dictionary that every format is a pure function of.

The keys up to `suppressed` are the contract of `--stdout json`; `SCHEMA_VERSION`
rises when one of them changes its meaning or goes away. Numbers may be NaN or
infinite here; `json_format` says how they are written.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypedDict

SCHEMA_VERSION = 1

Verdict = Literal["healthy", "unhealthy", "inconclusive"]


class Tool(TypedDict):
    """The program that made the report."""

    name: str
    version: str


class EvidenceItem(TypedDict):
    """A file that was read. `sha256` is None where `note` says why."""

    kind: str
    source: str
    sha256: str | None
    note: str


class MissingItem(TypedDict):
    """Evidence that was not there; `why` is a clause that says what would provide it."""

    kind: str
    why: str


class RunSection(TypedDict):
    """What was examined and what could not be."""

    evidence: list[EvidenceItem]
    missing: list[MissingItem]


class ArithmeticItem(TypedDict):
    """One term of a score, in log-odds; the prior is what is left of the score.

    `weight` is what was added; a finding whose `group` had counted already has 0.
    """

    code: str
    group: str
    weight: float
    note: str


class DiagnosisItem(TypedDict):
    """One cause, with what speaks for it, against it, and what is not known."""

    cause: str
    score: float
    supporting: list[str]
    contradicting: list[str]
    unknown: list[str]
    confirmation: Literal["confirmed", "refuted", "undecided"] | None
    arithmetic: list[ArithmeticItem]


class FindingItem(TypedDict):
    """One symptom, as `Finding.to_dict` gives it."""

    code: str
    severity: Literal["info", "warning", "error"]
    message: str
    measured: Mapping[str, Any]
    expected: str
    where: str | None
    onset: int | None
    fix: str
    fingerprint: str


class OutcomeItem(TypedDict):
    """What became of one check, as `Outcome.to_dict` gives it."""

    check: str
    status: Literal["passed", "found", "skipped", "inconclusive", "crashed"]
    reason: str
    seconds: float
    findings: list[FindingItem]


class CauseText(TypedDict):
    """The knowledge base's words on a cause. Written by us: Markdown is allowed in it."""

    title: str
    summary: str
    explanation: str
    remedy: str


class Fix(TypedDict):
    """What to change: the affected configuration keys before and after, and a unified diff.

    A key with dots is nested: `lora_parameters.scale`.
    """

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    diff: str


class TimelineItem(TypedDict):
    """Something that happened; `iteration` is None before training began."""

    iteration: int | None
    event: str


class Next(TypedDict):
    """The check whose answer could change the order of causes most.

    `kind` is its name, `why` the clause for what it lacked, `how` what would provide it.
    """

    kind: str
    why: str
    how: str


class Curve(TypedDict):
    """A series: `iterations` rising, `values` of the same length, NaN where reported so."""

    iterations: Sequence[int]
    values: Sequence[float]


class Floor(TypedDict):
    """A loss that means something by itself, in nats: "uniform guess, ln(32,000)"."""

    label: str
    value: float


class LossFigure(TypedDict):
    """The loss over the run, in nats a token. `axis` is what the iterations count."""

    train: Curve | None
    val: Curve | None
    onset: int | None
    floors: list[Floor]
    axis: str


class DriftFigure(TypedDict):
    """The size of the update by layer (rows) and module (columns), NaN where there is none."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    quantity: str


class CheckpointsFigure(TypedDict):
    """The size of the update by module or layer (rows) and checkpoint (columns).

    A size is NaN where it is not finite, and 0 where there is no update; `broken` says of
    each checkpoint whether its file or the log condemns it.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    broken: Sequence[bool]
    quantity: str


class TokensFigure(TypedDict):
    """Shares (0 to 1) of the most frequent tokens in outputs; `base` is None where not known."""

    tokens: Sequence[str]
    base: Sequence[float] | None
    tuned: Sequence[float]
    prompts: int


class LabelToken(TypedDict):
    """One token of a row: its text, its region, and whether the loss counts it."""

    text: str
    region: Literal["prompt", "answer", "end", "pad", "other"]
    target: bool


class LabelsFigure(TypedDict):
    """One training row as the loss sees it. `row` is its index in the split."""

    split: str
    row: int
    tokens: list[LabelToken]


class Figures(TypedDict):
    """The data of each figure; None where the evidence for it was not there."""

    loss: LossFigure | None
    drift: DriftFigure | None
    checkpoints: CheckpointsFigure | None
    tokens: TokensFigure | None
    labels: LabelsFigure | None


class Sample(TypedDict):
    """One prompt and the answers to it; `base` is None where it is not known."""

    prompt: str
    base: str | None
    tuned: str


class ReportData(TypedDict):
    """The whole report. `withheld` says whether it is without rows and outputs."""

    schema_version: int
    tool: Tool
    verdict: Verdict
    run: RunSection
    diagnosis: list[DiagnosisItem]
    outcomes: list[OutcomeItem]
    experiments: list[Mapping[str, Any]]
    suppressed: list[Mapping[str, Any]]
    name: str
    causes: Mapping[str, CauseText]
    contributing: list[str]
    fix: Fix | None
    figures: Figures
    timeline: list[TimelineItem]
    sample: Sample | None
    next: Next | None
    commands: list[str]
    versions: Mapping[str, str]
    unreadable: list[str]
    withheld: bool


@dataclass(frozen=True)
class Report:
    """A validated report.

    Attributes:
        data: the sections, as `ReportData` describes them.

    Raises:
        ValueError: a key is missing, unknown, or of the wrong type. A bug, never bad input.
    """

    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        _validate(self.data, ReportData, "report")
        unexplained = {one["cause"] for one in self.data["diagnosis"]} - set(self.data["causes"])
        if unexplained:
            raise ValueError(f"report.causes lacks {', '.join(sorted(unexplained))}")
        object.__setattr__(self, "data", MappingProxyType(dict(self.data)))

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dictionaries and lists."""
        return dict(self.data)


def findings(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All findings of the report, worst first, otherwise in the order of the checks."""
    order = {"error": 0, "warning": 1, "info": 2}
    found = [finding for outcome in data["outcomes"] for finding in outcome["findings"]]
    return sorted(found, key=lambda finding: order[finding["severity"]])


def home_folder() -> str:
    """The user's folder, for `without_folders`; empty for a user who has none."""
    try:
        return str(Path.home())
    except RuntimeError:  # a container's user that no list of users knows
        return ""


def without_folders(value: Any, folders: Sequence[str], home: str = "") -> Any:
    """`value` with the given absolute folders cut off every path in its texts.

    A report is passed on: it must not show where on a machine it was made.

    Args:
        value: texts, numbers, and mappings and lists of them.
        folders: cut off; the longest first. A folder itself becomes ".".
        home: the user's folder, which becomes "~" where nothing else was cut off.
    """
    shown = {one.rstrip("/"): ("", ".") for one in folders}
    if home:
        shown[home.rstrip("/")] = ("~/", "~")
    substitutions: list[tuple[re.Pattern[str], str]] = []
    for folder in sorted(shown.keys() - {""}, key=len, reverse=True):
        # "/work" must not be cut out of "/workshop" or "/mnt/work".
        start = rf"(?<![\w.\-/~]){re.escape(folder)}"
        below, itself = shown[folder]
        substitutions.append((re.compile(rf"{start}/(?=[^\s/:;,'\")])"), below))
        substitutions.append((re.compile(rf"{start}/?(?![\w.\-/])"), itself))

    def cleaned(one: Any) -> Any:
        if isinstance(one, str):
            for pattern, replacement in substitutions:
                one = pattern.sub(replacement, one)
            return one
        if isinstance(one, Mapping):
            return {key: cleaned(item) for key, item in one.items()}
        if isinstance(one, list | tuple):
            return [cleaned(item) for item in one]
        return one

    return cleaned(value)


def _validate(value: Any, hint: Any, where: str) -> None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is not None:
            _validate(value, next(one for one in arguments if one is not type(None)), where)
    elif origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where} is {value!r}, not one of {arguments}")
    elif origin in (list, Sequence):
        _expect(isinstance(value, Sequence) and not isinstance(value, str), value, where, "list")
        for index, item in enumerate(value):
            _validate(item, arguments[0], f"{where}[{index}]")
    elif origin is Mapping:
        _expect(isinstance(value, Mapping), value, where, "mapping")
        for key, item in value.items():
            _validate(item, arguments[1], f"{where}[{key!r}]")
    elif typing.is_typeddict(hint):
        _validate_keys(value, hint, where)
    elif hint is not Any:
        kinds = (int, float) if hint is float else (hint,)
        is_right = isinstance(value, kinds) and not isinstance(value, bool | None)
        _expect(is_right or (hint is bool and isinstance(value, bool)), value, where, str(hint))


def _expect(condition: bool, value: Any, where: str, wanted: str) -> None:
    if not condition:
        raise ValueError(f"{where} is a {type(value).__name__}, not a {wanted}")


@cache  # resolving them takes longer than all else, and a gate validates thousands of reports
def _type_hints(hint: Any) -> dict[str, Any]:
    return typing.get_type_hints(hint)


def _validate_keys(value: Any, hint: Any, where: str) -> None:
    _expect(isinstance(value, Mapping), value, where, "mapping")
    hints = _type_hints(hint)
    wrong = sorted(hints.keys() ^ value.keys())
    if wrong:
        state = ["is missing" if key in hints else "is unknown" for key in wrong]
        listed = ", ".join(f"{where}.{key} {how}" for key, how in zip(wrong, state, strict=True))
        raise ValueError(listed)
    for key, item in value.items():
        _validate(item, hints[key], f"{where}.{key}")
