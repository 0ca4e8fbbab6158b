"""The answer in one word, what was learned of every cause, and what experiments said of some."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from mlxdoctor.exhibits import Curve, SampleAnswer

#: What experiments said of a cause.
Confirmation = Literal["confirmed", "refuted", "undecided"]


class Verdict(StrEnum):
    """What is said of a run. `healthy` is earned: learning was seen, and nothing speaks against."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNHEALTHY = "unhealthy"
    INCONCLUSIVE = "inconclusive"


class Readiness(StrEnum):
    """What is said of a run that has not begun: `preflight`'s answer."""

    READY = "ready"
    READY_BUT = "ready, but"
    NOT_READY = "not ready"
    UNKNOWN = "unknown"


class CauseStatus(StrEnum):
    """How far a cause was looked into.

    `named`: it is the root cause. `possible`: a finding speaks for it. `ruled-out`: its signs
    were looked for and not found. `no-sign`: nothing speaks for it, and nothing rules it out.
    `open`: its signs could not be looked for.
    """

    NAMED = "named"
    POSSIBLE = "possible"
    RULED_OUT = "ruled-out"
    NO_SIGN = "no-sign"
    OPEN = "open"


@dataclass(frozen=True)
class Coverage:
    """What is known of one cause.

    Attributes:
        cause: its id.
        why: the finding that speaks for it, the check that rules it out, or, as a clause, why
            its signs could not be looked for.
        needs: of an open cause: what would let its signs be looked for, as a clause.
    """

    cause: str
    status: CauseStatus
    why: str
    needs: str = ""


@dataclass(frozen=True)
class NextCheck:
    """The evidence that would say most.

    Attributes:
        why, how: what is lacking, and what would provide it, as clauses; the latter may be empty.
        settles: ids of the open causes that it would rule out or find.
        command: that provides it; empty where it takes a file.
    """

    why: str
    how: str
    settles: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class CauseTried:
    """The verdict on a cause; `reason` is a sentence without its stop."""

    experiment: Literal["verdict"] = "verdict"
    cause: str
    title: str
    verdict: Confirmation
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """One rerun under one condition, which `label` says in words.

    Attributes:
        cause: that it was made for; None where it serves all.
        symptom: whether it shows what speaks for the cause, or any error of the run.
        errors: the codes of its errors.
        base_loss, loss: of the base model and of the rerun's on held-out answers, nats a token.
    """

    experiment: str
    cause: str | None
    label: str
    seed: int
    symptom: bool
    errors: tuple[str, ...]
    base_loss: float | None
    loss: float | None
    iterations: int
    seconds: float
    curve: Curve
    samples: tuple[SampleAnswer, ...]


Experiment = CauseTried | Rerun
