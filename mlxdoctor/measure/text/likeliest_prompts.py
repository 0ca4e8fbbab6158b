"""The prompt of another row that an answer shares most rare tokens with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

#: Tokens in a row that make a passage, and the share of an answer's passages that make a prompt
#: one that quotes it: the next turn of a conversation, and no prompt to that answer.
PASSAGE, QUOTED = 5, 0.8

Tokens = Sequence[int]


def likeliest_prompts(
    prompts: Sequence[Tokens], answers: Sequence[Tokens]
) -> list[tuple[int, int]]:
    """For each row the row whose prompt its answer fits best, by tokens that few prompts have.

    Args:
        prompts: the tokens of each row's prompt.
        answers: of each row's answer; empty for a row that is not asked about.

    Returns:
        (row, other row), for the rows whose answer shares any with another one's prompt.
    """
    asked = [frozenset(one) for one in prompts]
    having = Counter(token for one in asked for token in one)
    weights = {token: math.log(len(asked) / count) ** 2 for token, count in having.items()}
    lengths = [math.sqrt(sum(weights[token] for token in one)) for one in asked]
    found = []
    for row, answer in enumerate(answers):
        said = weights.keys() & set(answer)
        scores = {
            other: sum(weights[token] for token in said & one) / lengths[other]
            for other, one in enumerate(asked)
            if lengths[other] and one != asked[row]
        }
        for other in sorted(scores, key=lambda one: (-scores[one], one)):
            if scores[other] <= 0:
                break
            if not _quotes(prompts[other], answer):
                found.append((row, other))
                break
    return found


def _quotes(prompt: Tokens, answer: Tokens) -> bool:
    """Whether nearly all of an answer stands in a prompt word for word."""
    theirs = set(_passages(prompt))
    passages = list(_passages(answer))
    if not passages:
        return False
    return sum(one in theirs for one in passages) >= QUOTED * len(passages)


def _passages(tokens: Tokens) -> Iterator[tuple[int, ...]]:
    return zip(*(tokens[at:] for at in range(PASSAGE)), strict=False)
