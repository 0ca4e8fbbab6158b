"""Whether pairs of answers taught the model which of the two to prefer, and at what cost.

What it finds. Chosen and rejected answers that stay exactly, or nearly, as likely; a margin that
falls while the loss falls, or while it rises, or on held-out rows; chosen answers that lose
hundreds of nats of likelihood; and a beta that gives pairs no usable weight.

Why it matters. The loss of such a run has no level to compare with, and asks for a margin only: it
can be zero, with an accuracy of 100%, of a model that no longer writes the chosen answers at all.

How it is measured. Margins and rewards of the chosen answers, from the first reports to the last;
divided by beta, rewards against a reference are nats of log-likelihood, and those of ORPO and SimPO
nats a token. The margin against the
loss: it should rise as that falls; `preference_pairs.toml` has the bounds.

When it is wrong. In DPO the chosen answer often loses a little likelihood; of answers of thousands
of tokens hundreds of nats are a little. In GRPO and PPO beta weighs the distance from the
reference, and zero is a choice.

What to do. Equal: print one pair as tokens, the reference's log-likelihoods and beta. Reversed:
look for a lost minus sign. Unlikely: divide the rate by ten.
"""

import math
from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.engines.series import SeriesFacts, smoothed
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Unsought
from mlxdoctor.judge.series_table import Columns, SeriesTable
from mlxdoctor.measure.policy_curves import OF_MEANS, PolicyCurves, correlation, policy_curves

_TABLE = SeriesTable.read("preference_pairs.toml")
#: Reports of a margin below which no course is seen.
REPORTS = 4
#: A margin that rose: fifty times the last printed digit, and so many noises of one report.
GAINED, NOISES = 0.05, 3.0
#: Rank correlation of loss and margin from which on the loss asks for a lower margin; below 0 in
#: sound runs.
TOGETHER = 0.3
#: Share of a log-likelihood by which it has risen where chosen answers are taught too.
TAUGHT = 0.1
#: Nats that a chosen answer may lose, and a token of it: about what a blind guess costs at each of
#: thirty tokens, and at one.
AN_ANSWER, A_TOKEN = 300.0, 10.0
#: Twice the largest beta that SimPO's authors use, and one at which a hundredth of a nat counts as
#: a pair that was learned.
LARGE_BETA, ABSURD_BETA = 20.0, 100.0


@check(codes=_TABLE.symptoms, rerun_symptom=True)
def preference_pairs(
    log: TrainingLog | None, config: TrainingConfig | None
) -> Iterator[Sign | Seen | Unsought]:
    """Judge beta, margins, rewards and accuracies of a run on pairs."""
    curves = policy_curves(log, config)
    if not curves.of_pairs and (log is None or not log.is_preference or curves.samples):
        raise DoesNotArise("the run was not trained on pairs of answers")
    yield from _beta(config, curves)
    margin = curves.of("margin")
    if log is None or margin is None or len(margin) < REPORTS:
        raise Inconclusive(f"the log holds fewer than {REPORTS} reports of a margin")
    trained = margin.facts
    held_out = curves.of("margin", held_out=True)
    if held_out is None:
        why = "the log has no margin on held-out rows; validate while training"
        yield Unsought(("held-out-reversed",), why)
    lost = _lost(curves)
    if not lost:
        why = "beta is not known, or what the rewards of the chosen answers are measured against"
        yield Unsought(("both-unlikely",), why)
    largest = max(abs(trained.lowest), abs(trained.highest))
    figures: dict[str, dict[str, Measurement]] = {
        "chosen": lost,
        "margin": {
            "largest": largest,
            "largest_nats": largest / curves.beta if curves.beta else 0.0,
            "is_apart": largest > 0.0,
            "below_zero": -trained.end,
            **_course(curves, margin),
            **_on_held_out_rows(curves, held_out, trained),
        },
    }
    columns: dict[str, Series] = {
        role: series for role in curves.trained if (series := curves.of(role)) is not None
    }
    described = Columns(columns, lambda name: figures.get(name, {}))
    judged = list(_TABLE.signs(described, curves.unit))
    yield from judged
    if not any(isinstance(sign, Sign) for sign in judged):
        yield from _learned(curves, trained, held_out)


def _beta(config: TrainingConfig | None, curves: PolicyCurves) -> Iterator[Sign | Unsought]:
    beta = curves.stated_beta
    if config is None or beta is None or not curves.of_pairs:
        yield Unsought(("beta-unusable",), "the configuration states no beta of a method on pairs")
    elif not 0.0 < beta < LARGE_BETA:
        severity = Severity.WARNING if 0.0 < beta < ABSURD_BETA else None
        shown = beta if math.isfinite(beta) else str(beta)
        yield Sign("beta-unusable", {"beta": shown}, severity=severity)


def _course(curves: PolicyCurves, margin: Series) -> dict[str, Measurement]:
    """Whether the loss asks for the course of the margin, and which answers win."""
    accuracy, loss = curves.of("accuracy"), curves.of("loss")
    together = correlation(loss, margin) if loss is not None else None
    named: dict[str, Measurement] = {"has_no_accuracy": accuracy is None, "is_asked_for": False}
    if accuracy is not None:
        wins = accuracy.facts.end
        named |= {"last_accuracy": wins, "lost_pairs": 1.0 - wins}
    if loss is not None and together is not None and together >= TOGETHER:
        named["is_asked_for"] = loss.facts.end < loss.facts.start
    return named


def _on_held_out_rows(
    curves: PolicyCurves, held_out: Series | None, trained: SeriesFacts
) -> dict[str, Measurement]:
    if held_out is None or len(held_out) < 2:
        return {}
    first, last = float(held_out.values[0]), float(np.median(held_out.values[-2:]))
    accuracy, gained = curves.of("accuracy", held_out=True), trained.end - trained.start
    wins = float(np.median(accuracy.values[-2:])) if accuracy is not None else 0.0
    return {
        "first_held_out": first,
        "last_held_out": last,
        "held_out_drop": first - last,
        "mirrored": (first - last) / gained if gained > 0.0 else None,
        "held_out_lost_pairs": 1.0 - wins,
    }


def _lost(curves: PolicyCurves) -> dict[str, Measurement]:
    """How many nats of likelihood the chosen answers lost, at most and in the end."""
    rewards, is_mean = curves.of("chosen"), curves.method in OF_MEANS
    if rewards is None or curves.beta is None or not (curves.has_reference or is_mean):
        return {}
    tested = curves.of("chosen", held_out=True)
    # The untouched model's: the higher of the first validation and report.
    first = [float(series.values[0]) for series in (rewards, tested) if series is not None]
    start = 0.0 if curves.has_reference else max(first)
    # The median of three: one batch among others may be unlike them.
    lost = (start - smoothed(rewards.values, 3)) / curves.beta
    bearable, of = (A_TOKEN, "a token") if is_mean else (AN_ANSWER, "an answer")
    most, last = float(lost.max()), float(lost[-1])
    shares = {"most_lost_share": most / bearable, "last_lost_share": last / bearable}
    return {"most_lost": most, "of": of, **shares}


def _learned(curves: PolicyCurves, trained: SeriesFacts, held_out: Series | None) -> Iterator[Seen]:
    change = trained.end - trained.start
    has_risen = change >= max(GAINED, NOISES * trained.noise)
    course = (trained.start, trained.end if has_risen else trained.start, "the rows trained on")
    if held_out is not None and len(held_out) >= 2:
        tested = (float(held_out.values[0]), float(held_out.values[-1]), "validation rows")
        course = tested if tested[1] - tested[0] >= GAINED else course
    first, last, rows = course
    if last - first >= GAINED:
        yield Seen(
            "The chosen reward less the rejected one went from {first_margin:.3f} to "
            "{last_margin:.3f} on {rows}.",
            {"first_margin": first, "last_margin": last, "rows": rows},
            learned=True,
        )
    chosen = curves.of("chosen")
    # ORPO and CPO with its second term teach the chosen answers too.
    if chosen is None or curves.has_reference is not False:
        return
    likely = chosen.facts
    if likely.end - likely.start >= max(TAUGHT * abs(likely.start), NOISES * likely.noise):
        said = "The reward of the chosen answers, which is their log-likelihood, went from "
        said += "{first_chosen:.3f} to {last_chosen:.3f}."
        figures = {"first_chosen": likely.start, "last_chosen": likely.end}
        yield Seen(said, figures, learned=True)
