"""Whether training on pairs or on rewards had something to prefer, and made it likelier.

What it finds. Chosen and rejected answers that stay equally likely; a margin or a reward that
falls because the loss asks for it; a margin that falls on held-out rows alone; answers of one
prompt that all have the same reward; a reward that rises with the length of answers that no longer
end; answers that are cut off; and a beta that gives pairs no usable weight.

Why it matters. The loss of such a run has no level to compare with. That of pairs asks for a margin
only, and that of GRPO is 0 by construction. Where all answers of a group have the same reward there
is no advantage and no gradient. A reward that pays for length gets length.

How it is measured. Margins, rewards, their spread among the answers to one prompt, and the length
of answers, from the first reports to the last; `preferences.toml` has the bounds. A margin that
falls is held against the loss, which should rise then.

When it is wrong. The first reports of a sound run may have no reward yet: with few reports it is a
warning. A spread that is gone once the reward has risen is a task that was learned. In GRPO and PPO
beta weighs the distance from the reference, and zero is a choice.

What to do. Print one pair as tokens with the reference's log-likelihoods and beta, or a few answers
with their rewards. Give partial rewards that a first model can earn; subtract a little for length.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Unsought
from mlxdoctor.judge.course import on_the_way
from mlxdoctor.judge.curve import CHANCE, fall_in_noises, levels
from mlxdoctor.judge.series_table import Columns, SeriesTable
from mlxdoctor.measure.policy_curves import policy_curves

_TABLE = SeriesTable.read("preferences.toml")
#: Columns that a run on pairs is judged by, and one on rewards; the first is what it is for.
PAIRS = ("margin", "accuracy", "loss", "held_out_margin", "held_out_accuracy")
REWARDS = ("reward", "length", "cut_off", "signal", "distance", "spread")
#: Reports of a margin or of a reward below which no course is seen.
REPORTS = 4
#: Column -> by how much it rises where something was learned, and by how many noises of one report:
#: fifty times the last printed digit of a margin, what a mean of a few answers is told apart by,
#: and a tenth of the pairs.
LEARNED = {
    "held_out_margin": (0.05, 0.0),
    "margin": (0.05, 3.0),
    "reward": (0.02, 1.15),
    "held_out_accuracy": (0.1, 0.0),
    "accuracy": (0.1, 3.0),
}
#: The share of groups without a spread from which on it is all of them, but for rounding.
ALL_GROUPS = 0.99
#: Reports of a reward in which a policy that learns anything has earned more.
MANY = 8
#: A spread below half of the last printed digit.
NO_SPREAD = 0.0005
#: Twice the largest beta that SimPO's authors use, and one at which a hundredth of a nat counts as
#: a pair that was learned.
LARGE_BETA, ABSURD_BETA = 20.0, 100.0

_WAY = "[ {on_the_way}: {way}.]"


@check(codes=_TABLE.symptoms, rerun_symptom=True)
def preferences(
    log: TrainingLog | None, config: TrainingConfig | None
) -> Iterator[Sign | Seen | Unsought]:
    curves = policy_curves(log, config)
    if not (curves.of_pairs or curves.samples or (log is not None and log.is_preference)):
        raise DoesNotArise("the run was not trained on pairs of answers, nor on rewards")
    names = REWARDS if curves.samples else PAIRS
    beta = _beta(config) if config is not None and not curves.samples else None
    if beta is not None and curves.of_pairs and not 0.0 < beta < LARGE_BETA:
        severity = Severity.WARNING if 0.0 < beta < ABSURD_BETA else None
        shown = beta if math.isfinite(beta) else str(beta)
        yield Sign("beta-unusable", {"beta": shown}, severity=severity)
    elif names is PAIRS and (beta is None or not curves.of_pairs):
        yield Unsought(("beta-unusable",), "the configuration states no beta of a method on pairs")
    if log is None:
        raise Inconclusive("no training log was found")
    signal = _signal(curves.series)
    every = {**curves.series, **({"signal": signal} if signal is not None else {})}
    columns = {name: every[name] for name in names if name in every}
    described = Columns(columns, lambda name: _more_figures(every, name, beta, curves.method))
    # Of a run on pairs there is no reward to look for, and of one on rewards no margin.
    patterns = [each for each in _TABLE.patterns if not set(names).isdisjoint(each.series)]
    if any("penalty" in name for name in log.main.series):
        # What is taken off a reward may have either sign.
        patterns = [each for each in patterns if each.code != "below-zero"]
    signs = list(replace(_TABLE, patterns=tuple(patterns)).signs(described, log.main.unit))
    yield from signs
    # What is said of the rewards or margins themselves says what became of them.
    telling = {each.code for each in patterns if names[0] in each.series}
    told = {sign.symptom: sign.severity for sign in signs if isinstance(sign, Sign)}
    if all(told[code] is Severity.INFO for code in telling & told.keys()):
        yield from _learned(columns, log.main.unit)
    if names[0] not in columns or len(columns[names[0]]) < REPORTS:
        raise Inconclusive(f"the log holds fewer than {REPORTS} reports of a {names[0]}")


def _beta(config: TrainingConfig) -> float | None:
    # What is stated may be no number.
    with suppress(TypeError, ValueError):
        return float(config.values.get("beta", config.values.get("dpo_beta")))
    return None


def _signal(series: Mapping[str, Series]) -> Series | None:
    """How far the rewards of one prompt's answers lie apart, in what the log says of it."""
    groups, spread, reward = map(series.get, ("flat_groups", "spread", "reward"))
    if groups is not None and (spread is None or len(groups) >= len(spread)):
        return Series(groups.iterations, np.where(groups.values >= ALL_GROUPS, 0.0, 1.0))
    if spread is not None:
        return Series(spread.iterations, np.where(spread.values <= NO_SPREAD, 0.0, spread.values))
    # Without a spread only rewards that are all 0 tell.
    return reward if reward is not None and not reward.values.any() else None


def _more_figures(
    series: Mapping[str, Series], name: str, beta: float | None, method: str
) -> dict[str, Measurement]:
    """Figures of a column that are not of its values alone."""
    facts, loss, spread = series[name].facts, series.get("loss"), series.get("spread")
    lost = facts.start - facts.end
    if name == "reward":
        # A reward model's rewards lie around 0: what they lie apart is what they are measured in.
        wide = spread.facts.start if spread is not None else 0.0
        return {"dropped_sizes": lost / max(abs(facts.start), wide, LEARNED["reward"][0])}
    if name == "length":
        return {"at_highest": float(np.mean(series[name].values == facts.highest))}
    if name == "held_out_margin" and "margin" in series:
        gained = series["margin"].facts.end - series["margin"].facts.start
        return {"mirrored": lost / gained if gained > 0.0 else None}
    if name != "margin":
        return {}
    largest = max(abs(facts.lowest), abs(facts.highest))
    first = [series[name].facts.first for name in ("chosen", "rejected") if name in series]
    return {
        "chosen_first": first[0] if first else None,
        "rejected_first": first[-1] if first else None,
        "offset": min(first, default=None),
        # ORPO's are means over tokens, and stay small.
        "largest": largest if method != "orpo" else None,
        "largest_nats": largest / beta if beta else 0.0,
        "is_asked_for": loss is not None and loss.facts.end < loss.facts.start,
    }


def _learned(columns: Mapping[str, Series], unit: str) -> Iterator[Seen]:
    for name, (least, noises) in LEARNED.items():
        if name not in columns:
            continue
        facts, level_of = levels(columns[name])
        start, end = _ends(columns[name], level_of)
        if end - start >= max(least, noises * facts.noise):
            figures = {"start": start, "end": end, "level_of": level_of}
            yield Seen(
                "The {series} went from {start:.3f} to {end:.3f}[ (over {level_of} reports each)]."
                + _WAY,
                {"series": _TABLE.words[name], **figures, **on_the_way(columns[name], unit)},
                # A few rewards rise by chance.
                learned=name != "reward" or len(columns[name]) >= MANY,
            )
            return
    if "reward" in columns and (points := len(columns["reward"])) >= MANY:
        facts, level_of = levels(columns["reward"])
        start, end = _ends(columns["reward"], level_of)
        is_level = fall_in_noises(facts) >= -CHANCE
        yield Seen(
            "In {points} reports the mean reward [does not rise{level}|rises within its noise]: it "
            "is {start:.3f} at the start and {end:.3f} at the end[ (over {level_of} reports "
            "each)], beside a noise of {noise:.2g} a report." + _WAY,
            {
                **on_the_way(columns["reward"], unit),
                "points": points,
                "level": "" if is_level else None,
                "start": start,
                "end": end,
                "level_of": level_of,
                "noise": columns["reward"].facts.noise,
            },
            stood=True,
        )


def _ends(column: Series, level_of: int | None) -> tuple[float, float]:
    """The means of the first and of the last reports, which is what a policy is trained for."""
    count = level_of or 1
    return float(column.values[:count].mean()), float(column.values[-count:].mean())
