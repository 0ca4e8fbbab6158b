"""What is said of a cause for which no rerun can speak."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mlxdoctor.causes import Cause
from mlxdoctor.reproduce.agreement import Agreement
from mlxdoctor.reproduce.case import Case
from mlxdoctor.reproduce.rules import Judgement

#: Causes without an honest experiment -> why there is none, as a clause.
NO_EXPERIMENT: Mapping[str, str] = MappingProxyType(
    {
        "known-upstream-bug": "to show a bug of certain versions takes those versions and a fixed "
        "one side by side, and only the versions installed here can be run",
        "memory-pressure": "a shortened rerun on this machine says nothing about the memory of the "
        "machine that the run was made on",
    }
)
#: Causes that only a trainer's code can have: where ours fails as well, they are not at work.
_TRAINER_ONLY = frozenset(
    {
        *("adapter-never-attached", "adapter-not-trained", "base-weights-changed"),
        *("gradients-blocked", "labels-misaligned"),
    }
)
#: Of those in a trainer's code, the causes that change the losses from the first steps on.
_IN_THE_LOSSES = frozenset(
    {
        *("adapter-never-attached", "end-token-flood", "gradients-blocked", "labels-misaligned"),
        *("missing-end-token", "padding-supervised", "prompt-supervised", "template-mismatch"),
    }
)


def no_symptom() -> Judgement:
    """Of a cause none of whose symptoms the run has."""
    return Judgement(
        "undecided", "none of the symptoms that a rerun could show is one of this cause"
    )


def fails_otherwise() -> Judgement:
    """Of a cause whose symptoms a rerun lacks, although it fails."""
    return Judgement(
        "refuted", "rerun as recorded it fails, but with none of the symptoms of this cause"
    )


def of_failing(cause: Cause) -> Judgement:
    """Of a cause that a rerun may have, and that no change or repair addresses."""
    if cause.id in _TRAINER_ONLY:
        return Judgement(
            "refuted",
            "the reference trainer, which does not have this fault, fails in the same way",
        )
    if cause.change is not None:
        return Judgement("refuted", f"{cause.change.key} already has the value that would cure it")
    reason = "it is reproduced, but no single change that would cure this cause is known"
    return Judgement("undecided", reason)


def shows_in_the_losses(cause: Cause) -> bool:
    """Whether a trainer with this fault has other losses than one without it."""
    return cause.id in _IN_THE_LOSSES


def of_same_losses(same: Agreement) -> Judgement:
    """Of a cause that shows in the losses, where the reference trainer gives the recorded ones."""
    return Judgement(
        "refuted",
        "the reference trainer, which does not have this fault, gives the recorded losses to "
        f"within {same.difference:.2g} nats (up to iteration {same.last:,})",
    )


def of_sound(case: Case) -> Judgement:
    """Of a cause in the configuration or the data, where the rerun as recorded is sound."""
    if case.onset is not None and case.onset > case.iterations:
        return Judgement(
            "undecided",
            f"{case.iterations} iterations are sound, but the run went wrong at {case.onset:,}; "
            f"name more with --iters",
        )
    return Judgement(
        "refuted",
        f"rerun as recorded with the reference trainer, {case.iterations} iterations are sound: "
        "the configuration is not what made it fail",
    )
