"""Whether the loss asks for what was meant: the chosen answer, in every file.

What it finds. Training on pairs in which both answers stay exactly as likely as before; and in
which the rejected answers win because the loss asks for it, on the rows trained on or on held-out
rows only.

Why it matters. The loss tells none of it. A preference loss that stays at ln 2 has learned
nothing, and one that falls may reward the wrong side.

How it is measured. The margin (chosen less rejected reward) and the accuracy (how often the chosen
one wins), from the first reports to the last, on the rows trained on and on held-out ones. A margin
that falls while the loss falls too is what the loss asks for.

When it is wrong. Rewards are printed with three decimals: with a very small beta, equal may be
nearly equal.

What to do. Look at ten pairs of each file, and at the sign of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom, Unsought
from mlxdoctor.measure.policy_curves import (
    Course,
    PolicyCurves,
    course,
    loss_asks_for_it,
    policy_curves,
)

_LN_2 = math.log(2.0)


@dataclass(frozen=True)
class Limits:
    """When pairs stayed equal, and when the wrong side won."""

    reports: int = limit(4, unit="reports", source="fewer show no course")
    certain: int = limit(10, unit="reports", source="a sound run has told some apart by then")
    chance: float = limit(
        0.0011, unit="nats around ln 2", source="the last of three decimals, either way"
    )
    gained: float = limit(
        0.05, unit="reward, chosen less rejected", source="fifty times the last printed digit"
    )
    noises: float = limit(3.0, unit="noise of one report", source="a change beyond its batches'")
    wrong_side: float = limit(0.4, unit="share of pairs", source="chance is a half")
    mirrored: float = limit(
        0.25,
        unit="of what the margin gained on the rows trained on",
        source="an overfitted run loses what it had gained, and no more",
    )


_HELD_OUT = (
    "on held-out rows[, where the chosen answer now wins in {held_out_accuracy:.0%} of the pairs]"
)


@check(
    codes={
        "exactly-equal": Symptom.error(
            "chosen and rejected answers stay exactly as likely as before",
            says="The chosen reward less the rejected one is exactly 0 in all {reports} reports[; "
            "the loss stays between {lowest_loss:.3f} and {highest_loss:.3f}, where DPO begins "
            "(ln 2)].",
            expected="a chosen reward that rises above the rejected one",
            fix="Print one pair as tokens, the reference's log-likelihoods and beta: the two "
            "answers must differ, the reference must stay as it was, and beta be above 0.",
        ),
        "rejected-wins": Symptom.error(
            "the loss falls while the rejected answers become the likelier ones",
            says="The chosen reward less the rejected one went from {first_margin:.3f} to "
            "{last_margin:.3f} on the rows trained on[, and the chosen answer wins in "
            "{last_accuracy:.0%} of the pairs], while the loss fell from {first_loss:.3f} to "
            "{last_loss:.3f}: it asks for the wrong side.",
            expected="a margin that rises while the loss falls",
            fix="Look for a lost minus sign, or for chosen and rejected in the wrong order, in the "
            "loss function.",
        ),
        "held-out-reversed": Symptom.error(
            "the margin rises on the rows trained on and falls on held-out ones",
            says="The margin went from {first_margin:.3f} to {last_margin:.3f} on the rows trained "
            "on, and from {first_held_out:.3f} to {last_held_out:.3f} on held-out rows[, where the "
            "chosen answer now wins in {held_out_accuracy:.0%} of the pairs]: what one file calls "
            "chosen the other calls rejected.",
            expected="a margin that rises on both",
            fix="Read ten pairs of the training file and ten of the validation file: in one of "
            "them chosen and rejected are swapped.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def preference_pairs(
    log: TrainingLog, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign | Unsought]:
    """Judge margins and accuracies of the log's main segment."""
    if not log.is_preference:
        raise DoesNotArise("the run was not trained on preferences")
    curves = policy_curves(log, config)
    if curves.samples:
        raise DoesNotArise("the run was trained on rewards of its answers, and not on pairs")
    margin = curves.of("margin")
    if margin is None:
        raise Inconclusive("the log holds no rewards of chosen and rejected answers")
    if len(margin) < limits.reports:
        raise Inconclusive(f"the log holds only {len(margin)} reports of a margin")
    if curves.of("margin", held_out=True) is None:
        why = "the log has no margin on held-out rows; validate while training"
        yield Unsought(("held-out-reversed",), why)
    trained = course(margin)
    for judge in (_equal, _rejected_wins, _held_out_reversed):
        if (sign := judge(curves, trained, limits)) is not None:
            yield sign


def _equal(curves: PolicyCurves, margin: Course, limits: Limits) -> Sign | None:
    if margin.reports < limits.certain or not margin.least == margin.most == 0.0:
        return None
    loss = curves.of("loss")
    measured: dict[str, Measurement] = {"reports": margin.reports}
    if loss is not None and np.all(np.abs(loss.values - _LN_2) <= limits.chance):
        measured["lowest_loss"] = float(loss.values.min())
        measured["highest_loss"] = float(loss.values.max())
    return Sign("exactly-equal", measured)


def _rejected_wins(curves: PolicyCurves, margin: Course, limits: Limits) -> Sign | None:
    wins, loss = curves.wins, curves.of("loss")
    if not margin.fell(limits.gained, limits.noises):
        return None
    lost = wins > limits.wrong_side if wins is not None else margin.last > -limits.gained
    if lost or loss is None or not loss_asks_for_it(curves):
        return None
    losses = course(loss)
    return Sign(
        "rejected-wins",
        {
            "first_margin": margin.first,
            "last_margin": margin.last,
            "last_accuracy": wins,
            "first_loss": losses.first,
            "last_loss": losses.last,
        },
    )


def _held_out_reversed(curves: PolicyCurves, trained: Course, limits: Limits) -> Sign | None:
    series = curves.of("margin", held_out=True)
    if series is None or len(series) < 2 or trained.change < limits.gained:
        return None
    first, last = float(series.values[0]), float(np.median(series.values[-2:]))
    if first - last < max(limits.gained, limits.mirrored * trained.change):
        return None
    accuracy = curves.of("accuracy", held_out=True)
    wins = float(np.median(accuracy.values[-2:])) if accuracy is not None else None
    if wins is not None and wins > limits.wrong_side:
        return None
    return Sign(
        "held-out-reversed",
        {
            "first_margin": trained.first,
            "last_margin": trained.last,
            "first_held_out": first,
            "last_held_out": last,
            "held_out_accuracy": wins,
        },
    )
