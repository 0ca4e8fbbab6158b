"""Whether an answer is one token, a handful of tokens, or a loop.

Asked of the answers of a run by the check, and of those of every save by bisect. What follows
from the share of such answers, against the base model's, is `measure.text.prompt_rates`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from mlxdoctor.check import limit
from mlxdoctor.engines.text import distinct_n, run_share, seq_rep_n, tail_loop, top_share
from mlxdoctor.measure.text.prompt_rates import RateLimits

#: Diversity is measured on this many units: in longer text, words recur.
MEASURED = 64

#: An answer before its end token: token ids, or words where those are unknown.
Content = Sequence[Hashable]


@dataclass(frozen=True)
class OneTokenLimits(RateLimits):
    """When an output is one token. The base model's own answers are held to these too."""

    shortest: int = limit(
        8, unit="tokens", source="shorter answers can be one repeated token by chance"
    )
    run_share: float = limit(
        0.9,
        unit="share of an answer's tokens that are one token, or in runs of four or more",
        source="a few tokens may precede the collapse",
    )


@dataclass(frozen=True)
class Limits(OneTokenLimits):
    """When an output is one token, a handful of them, or a loop."""

    alone: int = limit(
        24,
        unit="tokens, or words and signs, of one answer that is one token",
        source="no right answer is one token 24 times over, unless the expected one is: so long "
        "a run needs no second prompt",
        false_alarms="0 of 24 fixture runs' sound answers and 0 of the base model's",
    )
    dominant_share: float = limit(
        0.5, unit="share of an answer's tokens", source="a comma has 0.12 of the fixtures' tokens"
    )
    distinct: float = limit(
        0.25,
        unit="distinct tokens over tokens, in the first 64",
        source="fixtures: 0.35 at least in sound runs, 0.02 to 0.19 in collapsed ones",
        false_alarms="0 of 6 sound or late runs of 16 prompts",
    )
    seq_rep_4: float = limit(
        0.5, unit="share of 4-grams", source="Welleck et al. 2020: 0.44 in greedy text of GPT-2"
    )
    loop_share: float = limit(
        0.5, unit="share of an answer's tokens in a loop at its end", source="half of the answer"
    )
    loop_periods: float = limit(
        3.0, unit="repetitions", source="twice is emphasis, three times a loop"
    )


def is_single(content: Content, limits: OneTokenLimits) -> bool:
    """Whether one token, or runs of a single one, make up nearly all of it."""
    share = max(top_share(content)[1], run_share(content))
    return len(content) >= limits.shortest and share >= limits.run_share


def is_plain_collapse(content: Content, limits: Limits) -> bool:
    """Whether it is one token for so long that a single such answer shows a broken model."""
    return len(content) >= limits.alone and is_single(content, limits)


def is_dominated(content: Content, limits: Limits) -> bool:
    """Whether one token makes up half of it."""
    is_half = _is_long(content, limits) and top_share(content)[1] >= limits.dominant_share
    return is_half or is_single(content, limits)


def is_poor(content: Content, limits: Limits) -> bool:
    """Whether a handful of tokens makes it up."""
    few = _is_long(content, limits) and distinct_n(content[:MEASURED], 1) <= limits.distinct
    return few or is_single(content, limits)


def ends_in_loop(content: Content, limits: Limits, least: int = 0) -> bool:
    """Whether a passage repeats to the end, over at least so many tokens and half of all."""
    period, covered = tail_loop(content)
    needed = max(least, limits.loop_share * len(content), limits.loop_periods * period)
    return len(content) >= limits.shortest and period > 0 and covered >= needed


def is_loop(content: Content, limits: Limits) -> bool:
    """Whether it ends in a loop, or repeats itself all over, and is more than one token."""
    repeats = _is_long(content, limits) and seq_rep_n(content) >= limits.seq_rep_4
    is_long_loop = ends_in_loop(content, limits, limits.shortest)
    return (is_long_loop or repeats) and not is_single(content, limits)


def is_collapsed(content: Content, limits: Limits) -> bool:
    """Whether it is any of these; text that repeats itself without ending in a loop is not."""
    return is_poor(content, limits) or ends_in_loop(content, limits)


def _is_long(content: Content, limits: Limits) -> bool:
    return len(content) >= 2 * limits.shortest
