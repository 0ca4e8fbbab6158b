"""What is said of a cause for which no rerun can speak."""

from __future__ import annotations

from mlxdoctor.causes import Cause
from mlxdoctor.reproduce.agreement import Agreement
from mlxdoctor.reproduce.case import Case
from mlxdoctor.reproduce.rules import Judgement


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
    if cause.only_in_code:
        return Judgement(
            "refuted",
            "the reference trainer, which does not have this fault, fails in the same way",
        )
    if cause.change is not None:
        return Judgement("refuted", f"{cause.change.key} already has the value that would cure it")
    reason = "it is reproduced, but no single change that would cure this cause is known"
    return Judgement("undecided", reason)


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
