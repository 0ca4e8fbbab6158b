"""Whether preferences or rewards were learned, and what it cost.

What it finds. Pairs that stay nearly equal, and a policy that does not move; a margin that falls
while the loss rises; chosen and rejected answers that become unlikely together; and a margin on
held-out rows that was higher before.

Why it matters. The loss of such a run has no level to compare with: these are what a too low rate,
a too high one and too many passes look like here.

How it is measured. Margins, rewards of the chosen answers, and divergences from the reference, from
the first reports to the last.

When it is wrong. In DPO the chosen answer often loses a little likelihood; only a loss of it beyond
what the margin gained counts, and of that only what is much for each of its tokens. Where rows or
tokenizer are missing, that is not known, and the loss has to be several times the gain. Held-out
rows that are few go up and down.

What to do. Where nothing moved, raise the rate. Where both answers became unlikely, divide it by
ten. Where the held-out margin was higher before, use the checkpoint from then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.pairs import chosen_length
from mlxdoctor.measure.policy_curves import (
    Course,
    PolicyCurves,
    beta_of,
    course,
    loss_asks_for_it,
    policy_curves,
)


@dataclass(frozen=True)
class Limits:
    """When a policy learned, and when it was damaged."""

    reports: int = limit(4, unit="reports", source="fewer show no course")
    certain: int = limit(10, unit="reports", source="a sound run has told some apart by then")
    apart: float = limit(
        0.01, unit="reward, chosen less rejected", source="rewards are printed with three decimals"
    )
    apart_nats: float = limit(
        0.1, unit="nats, chosen less rejected", source="as `apart` at a beta of 0.1"
    )
    gained: float = limit(
        0.05, unit="reward, chosen less rejected", source="fifty times the last printed digit"
    )
    noises: float = limit(3.0, unit="noise of one report", source="a change beyond its batches'")
    wrong_side: float = limit(0.4, unit="share of pairs", source="chance is a half")
    both: float = limit(
        1.0, unit="of what the margin gained", source="sound runs of mlx-lm-lora: at most 0.7"
    )
    lost: float = limit(
        1.0,
        unit="nats a token of the chosen answer",
        source="by judgement, not measured: long answers lose more in all, and less a token",
    )
    lost_most: float = limit(
        1.5, unit="nats a token of the chosen answer", source="as `lost`, half as much again"
    )
    both_unmeasured: float = limit(
        5.0,
        unit="of what the margin gained, where the answers' length is not known",
        source="by judgement, not measured: long answers lose more than the margin gains",
    )
    lost_unmeasured: float = limit(
        1.0, unit="reward of the chosen answer", source="ten nats an answer at a beta of 0.1"
    )
    lost_most_unmeasured: float = limit(
        3.0, unit="reward of the chosen answer", source="thirty nats at 0.1"
    )
    likelier: float = limit(
        0.1, unit="of the first reward's size", source="several times the noise of batches"
    )
    unmoved: float = limit(
        1e-4, unit="nats a token", source="a hundredth of what sound runs have after ten updates"
    )
    unmoved_by: int = limit(
        50, unit="iterations", source="rates of 1e-6 and a warm-up take some updates to be seen"
    )
    held_out: int = limit(4, unit="validations", source="fewer show no peak")
    given_back: float = limit(
        0.5, unit="of the held-out gain", source="sound runs of mlx-lm-lora: at most 0.2"
    )


@check(
    codes={
        "not-told-apart": Symptom.warning(
            "chosen and rejected answers stay equally likely",
            expected="a chosen reward that rises above the rejected one",
            fix="See whether the adapter's weights changed; raise the learning rate, and make sure "
            "that chosen and rejected answers differ.",
        ),
        "unmoved": Symptom.warning(
            "the policy stays where its reference is",
            expected="a divergence that grows a little",
            fix="See whether the adapter's weights changed, and raise the learning rate.",
        ),
        "margin-lost": Symptom.error(
            "the rejected answers become the likelier ones, and the loss rises",
            expected="a margin that rises",
            fix="Divide the learning rate by ten, and start again from the base.",
        ),
        "both-unlikely": Symptom.warning(
            "chosen and rejected answers become unlikely together",
            expected="a chosen reward that stays near where it was",
            fix="Divide the learning rate by ten, or add a loss on the chosen answer.",
        ),
        "held-out-fell": Symptom.info(
            "the margin on held-out rows was higher before",
            expected="a margin that stays up",
            fix="Use the checkpoint from before it fell, and train for fewer passes.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def policy_progress(
    log: TrainingLog,
    config: TrainingConfig | None,
    dataset: Dataset | None,
    tokenizer: Tokenizer | None,
    limits: Limits,
) -> Iterator[Sign | Seen | Unsought]:
    """Judge the course of the log's main segment."""
    if not log.is_preference:
        raise NotApplicable("the run was not trained on preferences or rewards")
    curves = policy_curves(log, config)
    if curves.samples:
        yield from _of_rewards(curves, limits)
        return
    margin = curves.of("margin")
    if margin is None:
        raise Inconclusive("the log holds no rewards of chosen and rejected answers")
    if len(margin) < limits.reports:
        raise Inconclusive(f"the log holds only {len(margin)} reports of a margin")
    held_out = curves.of("margin", held_out=True)
    if held_out is None or len(held_out) < limits.held_out:
        why = f"the log has fewer than {limits.held_out} validations with a margin"
        yield Unsought(("held-out-fell",), why)
    trained = course(margin)
    beta = beta_of(config)
    apart = limits.apart if beta is None else min(limits.apart, limits.apart_nats * beta)
    if max(abs(trained.least), abs(trained.most)) <= apart:
        yield from _equal(trained, limits)
        return
    signs = [
        one
        for one in (
            _margin_lost(curves, trained, limits),
            _both_unlikely(curves, trained, _nats(curves, beta, dataset, tokenizer), limits),
            _held_out_fell(curves, limits),
        )
        if one is not None
    ]
    yield from signs
    if not signs:
        yield from _learned(curves, trained, limits)


def _of_rewards(curves: PolicyCurves, limits: Limits) -> Iterator[Sign | Unsought]:
    why = "the run was trained on rewards of its answers, and not on pairs"
    yield Unsought(("not-told-apart", "margin-lost", "held-out-fell"), why)
    divergence = curves.of("kl") or curves.of("kl_of_answer")
    if divergence is None or not divergence.values.any():
        yield Unsought(("unmoved", "both-unlikely"), "the log has no KL divergence")
        return
    reports, most = len(divergence), float(np.abs(divergence.values).max())
    has_begun = int(divergence.iterations[-1]) >= limits.unmoved_by
    if reports < limits.certain or most > limits.unmoved or not has_begun:
        return
    yield Sign(
        "unmoved",
        f"The KL divergence from the reference is at most {most:.2g} nats in {reports} reports: "
        "the policy is what it was.",
        {"reports": reports, "largest_kl": most},
    )


def _equal(margin: Course, limits: Limits) -> Iterator[Sign]:
    largest = max(abs(margin.least), abs(margin.most))
    if margin.reports >= limits.certain:
        yield Sign(
            "not-told-apart",
            f"The chosen reward is never more than {largest:.3g} away from the rejected one in "
            f"{margin.reports} reports.",
            {"reports": margin.reports, "largest_margin": largest},
        )


def _margin_lost(curves: PolicyCurves, margin: Course, limits: Limits) -> Sign | None:
    wins = curves.wins
    if not margin.fell(limits.gained, limits.noises):
        return None
    if (wins is not None and wins > limits.wrong_side) or loss_asks_for_it(curves):
        return None
    won = f", and the chosen answer wins in {wins:.0%} of the pairs" if wins is not None else ""
    return Sign(
        "margin-lost",
        f"The chosen reward less the rejected one went from {margin.first:.3f} to "
        f"{margin.last:.3f} on the rows trained on{won}.",
        {"first_margin": margin.first, "last_margin": margin.last, "last_accuracy": wins},
    )


def _nats(
    curves: PolicyCurves,
    beta: float | None,
    dataset: Dataset | None,
    tokenizer: Tokenizer | None,
) -> float | None:
    """What a reward of 1 is in nats a token of the chosen answer; None where that is not known."""
    if beta is None:
        return None
    if curves.by_token:
        return 1.0 / beta
    split = dataset.splits.get("train") if dataset is not None else None
    length = chosen_length(split, tokenizer) if split is not None else None
    if length is None or length.is_bound or length.answer <= 0.0:
        return None
    return 1.0 / (beta * length.answer)


def _both_unlikely(
    curves: PolicyCurves, margin: Course, nats: float | None, limits: Limits
) -> Sign | None:
    chosen = curves.of("chosen")
    if chosen is None:
        return None
    reward = course(chosen)
    fell = reward.begun - reward.last
    grew = max(margin.last - margin.begun, 0.0)
    if nats is None:
        both, lost, lost_most = limits.both_unmeasured, fell, limits.lost_most_unmeasured
        least, a_token = limits.lost_unmeasured, ""
    else:
        both, lost, lost_most = limits.both, fell * nats, limits.lost_most
        least, a_token = limits.lost, f" ({fell * nats:.2f} nats for each of their tokens)"
    if lost < least or fell < both * grew:
        return None
    return Sign(
        "both-unlikely",
        f"The reward of the chosen answers went from {reward.begun:.3f} to {reward.last:.3f}"
        f"{a_token}, and the margin from {margin.begun:.3f} to {margin.last:.3f}: the model gives "
        "up more on the answers it is to prefer than it wins by it.",
        {
            "first_chosen": reward.begun,
            "last_chosen": reward.last,
            "lost_a_token": None if nats is None else fell * nats,
            "first_margin": margin.begun,
            "last_margin": margin.last,
        },
        severity=Severity.ERROR if lost >= lost_most else None,
    )


def _held_out_fell(curves: PolicyCurves, limits: Limits) -> Sign | None:
    series = curves.of("margin", held_out=True)
    if series is None or len(series) < limits.held_out:
        return None
    first, last = float(series.values[0]), float(np.median(series.values[-2:]))
    place = int(np.argmax(series.values))
    best = float(series.values[place])
    gain, back = best - first, best - last
    if gain < limits.gained or back < limits.given_back * gain or last < first - limits.gained:
        return None
    at = int(series.iterations[place])
    return Sign(
        "held-out-fell",
        f"The margin on held-out rows went from {first:.3f} to {best:.3f} at {curves.unit} {at}, "
        f"and back to {last:.3f}.",
        {"first_held_out": first, "best_held_out": best, "last_held_out": last},
        onset=at,
    )


def _learned(curves: PolicyCurves, trained: Course, limits: Limits) -> Iterator[Seen]:
    held_out = curves.of("margin", held_out=True)
    if held_out is not None and len(held_out) >= 2:
        first, last = float(held_out.values[0]), float(held_out.values[-1])
        if last - first >= limits.gained:
            yield Seen(
                f"The chosen reward less the rejected one went from {first:.3f} to {last:.3f} on "
                "validation rows.",
                {"first_margin": first, "last_margin": last},
                learned=True,
            )
            return
    if trained.rose(limits.gained, limits.noises):
        yield Seen(
            f"The chosen reward less the rejected one went from {trained.first:.3f} to "
            f"{trained.last:.3f} on the rows trained on.",
            {"first_margin": trained.first, "last_margin": trained.last},
            learned=True,
        )
    yield from _likelier(curves, limits)


def _likelier(curves: PolicyCurves, limits: Limits) -> Iterator[Seen]:
    """ORPO and CPO with its second term teach the chosen answers too."""
    chosen = curves.of("chosen")
    if chosen is None or curves.has_reference is not False:
        return
    went = course(chosen)
    measured: dict[str, Measurement] = {"first_chosen": went.first, "last_chosen": went.last}
    if went.rose(limits.likelier * abs(went.first), limits.noises):
        yield Seen(
            f"The reward of the chosen answers, which is their log-likelihood, went from "
            f"{went.first:.3f} to {went.last:.3f}.",
            measured,
            learned=True,
        )
