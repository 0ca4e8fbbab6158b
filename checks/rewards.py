"""Whether rewards and preferences were learned.

What it finds. Training on rewards in which every reward is zero; and training on preferences in
which the chosen and the rejected answers stay equally likely.

Why it matters. Where all answers of a group have the same reward there is no advantage and no
gradient: the run goes on for hours and changes nothing. A preference loss that stays at ln 2 says
the same: the model tells no pair apart.

How it is measured. Every series of rewards in the log is looked at; spreads (std) and the implicit
rewards of pairs are left out. Pairs are told apart where the chosen reward rises above the
rejected one, on validation rows where the log has them.

When it is wrong. The first reports of a sound run may have no reward yet: with few reports it is a
warning. A preference loss other than DPO's does not begin at ln 2; only the rewards are judged
then.

What to do. Print a few answers with their rewards. Give partial rewards that a first model can
earn, or start from a model that earns some. For pairs raise the rate or beta.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.losses.trend import Floats

_VALIDATION = frozenset({"val", "valid", "validation", "eval"})
#: Words of series that are no reward of an answer: spreads, and the implicit rewards of pairs.
_OTHER = frozenset({"std", "chosen", "rejected", "margin", "margins", "accuracies", "accuracy"})


@dataclass(frozen=True)
class Limits:
    """When nothing was rewarded, and when pairs were told apart."""

    reports: int = limit(3, unit="reports", source="as many as show that it is no first batch")
    certain: int = limit(10, unit="reports", source="a sound run has earned a reward by then")
    chance: float = limit(
        0.005, unit="nats around ln 2", source="a public DPO run leaves it at its second report"
    )
    apart: float = limit(
        0.01, unit="reward, chosen less rejected", source="rewards are printed with three decimals"
    )
    gained: float = limit(
        0.1, unit="reward, chosen less rejected", source="several hundred times the last digit"
    )


@check(
    codes={
        "all-zero": Symptom.error(
            "every reward is zero",
            expected="rewards that differ between answers to one prompt",
            fix="Print answers with their rewards; give partial rewards that the model can earn.",
        ),
        "not-told-apart": Symptom.warning(
            "chosen and rejected answers stay equally likely",
            expected="a chosen reward that rises above the rejected one",
            fix="See whether the adapter's weights changed; raise the learning rate, and make sure "
            "that chosen and rejected answers differ.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def rewards(log: TrainingLog, limits: Limits) -> Iterator[Sign | Seen | Unsought]:
    """Judge the rewards of the log's main segment."""
    if not log.is_preference:
        raise DoesNotArise("the run was not trained on rewards or preferences")
    segment = log.main
    earned = {
        name: one
        for name, one in segment.series.items()
        if (words := set(name.split("_"))) & {"reward", "rewards"} and not words & _OTHER
    }
    margins = _margins(segment)
    if not earned and not margins:
        raise Inconclusive("the log holds no rewards")
    if not earned:
        yield Unsought(("all-zero",), "the log holds no rewards of answers")
    if not margins:
        yield Unsought(("not-told-apart",), "the log holds no rewards of chosen and rejected rows")
    yield from _all_zero(earned, limits)
    yield from _told_apart(segment, margins, limits)


def _all_zero(earned: Mapping[str, Series], limits: Limits) -> Iterator[Sign]:
    reports = max((len(one) for one in earned.values()), default=0)
    if reports < limits.reports or any(bool(np.any(one.values != 0.0)) for one in earned.values()):
        return
    first = min(int(one.iterations[0]) for one in earned.values())
    yield Sign(
        "all-zero",
        f"Every reward is 0 in all {reports} reports: no answer is better than another, and "
        "nothing can be learned.",
        {"reports": reports, "series": tuple(earned)[:5]},
        onset=first,
        severity=None if reports >= limits.certain else Severity.WARNING,
    )


def _margins(segment: Segment) -> dict[bool, Floats]:
    """Chosen less rejected reward, as often as it is reported; by whether of validation rows."""
    found: dict[bool, dict[str, Series]] = {False: {}, True: {}}
    for name, series in segment.series.items():
        words = set(name.split("_"))
        if words & {"logps", "logits", "logp"} or not words & {"reward", "rewards", "r", "margins"}:
            continue
        for role in ("chosen", "rejected", "margins"):
            if role in words:
                found[bool(words & _VALIDATION)].setdefault(role, series)
    margins: dict[bool, Floats] = {}
    for held_out, by_role in found.items():
        if "margins" in by_role:
            values = by_role["margins"].values
        elif {"chosen", "rejected"} <= by_role.keys():
            chosen, rejected = by_role["chosen"], by_role["rejected"]
            if not np.array_equal(chosen.iterations, rejected.iterations):
                continue
            values = chosen.values - rejected.values
        else:
            continue
        if len(values) and np.isfinite(values).all():
            margins[held_out] = values
    return margins


def _told_apart(
    segment: Segment, margins: Mapping[bool, Floats], limits: Limits
) -> Iterator[Sign | Seen]:
    for held_out, values in margins.items():
        first, last = float(values[0]), float(values[-1])
        if len(values) >= 2 and last >= limits.gained and last - first >= limits.gained:
            which = "validation" if held_out else "training"
            yield Seen(
                f"The chosen reward less the rejected one went from {first:.3f} to {last:.3f} on "
                f"{which} rows.",
                {"first_margin": first, "last_margin": last},
                learned=held_out,
            )
    trained = margins.get(False)
    if trained is None or len(trained) < limits.certain or np.abs(trained).max() > limits.apart:
        return
    losses = segment.get("train_loss")
    loss = ""
    if losses is not None and np.all(np.abs(losses.values - math.log(2)) <= limits.chance):
        lowest, highest = float(losses.values.min()), float(losses.values.max())
        loss = f", and the loss stays between {lowest:.3f} and {highest:.3f}, where DPO begins"
    yield Sign(
        "not-told-apart",
        f"The chosen reward is never more than {np.abs(trained).max():.3g} away from the rejected "
        f"one in {len(trained)} reports{loss}.",
        {"reports": len(trained), "largest_margin": float(np.abs(trained).max())},
    )
