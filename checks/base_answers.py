"""The base model's own answers.

What it finds. A base model that answers most prompts with nothing, or with one token over
and over, before any adapter is put on it.

Why it matters. Then the fine-tune is not to blame: the weights, their quantisation, the
tokenizer or the prompt format were broken before it began, and no training mends that.

How it is measured. An answer is degenerate if it is empty, or if one token makes up nearly
all of it. The share of such answers is given with its 95% Wilson interval over prompts.

When it is wrong. A model that was never taught to chat may answer a chat template with
its end token. Answers recorded without the base model say nothing about it.

What to do. Generate a few answers with the base model alone. If they are garbage there too,
download or convert it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.generations import Generations
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.outputs import Output, pairs
from mlxdoctor.text_statistics import top_share, wilson


@dataclass(frozen=True)
class Limits:
    """When a base model's answers show that it is broken."""

    prompts: int = limit(
        5, unit="prompts", source="5 of 5 leave a Wilson interval from 0.57 upwards"
    )
    share_low: float = limit(
        0.5,
        unit="lower end of the interval of the share of prompts",
        source="certainly more than half of the answers",
        false_alarms="0 of 24 fixture runs: one base model answers in all of them",
    )
    shortest: int = limit(
        8, unit="tokens", source="shorter answers can be one repeated token by chance"
    )
    run_share: float = limit(
        0.9, unit="share of an answer's tokens", source="as token-collapse.single-token"
    )


@check(
    codes={"degenerate": "the base model itself answers with nothing or with one token"},
    limits=Limits(),
)
def base_answers(
    generations: Generations,
    tokenizer: Tokenizer | None,
    base: BaseModel | None,
    limits: Limits,
) -> Iterator[Finding]:
    """Report the share of degenerate answers of the base model."""
    answers = [pair.base for pair in pairs(generations, tokenizer, base) if pair.base is not None]
    if not answers:
        raise NotApplicable("the base model's answers were not recorded")
    if len(answers) < limits.prompts:
        raise Inconclusive(f"{len(answers)} prompts; {limits.prompts} are needed")
    bad = sum(_is_degenerate(answer, limits) for answer in answers)
    interval = wilson(bad, len(answers))
    if interval.low < limits.share_low:
        return
    yield Finding(
        code="base-answers.degenerate",
        severity=Severity.ERROR,
        message=f"The base model itself answers {bad} of {len(answers)} prompts with nothing or "
        "with one token over and over: it was broken before training.",
        measured={
            "degenerate": bad,
            "prompts": len(answers),
            "share_low": interval.low,
            "share_high": interval.high,
        },
        expected="answers in sentences",
        fix="Generate with the base model alone; if that is garbage too, convert it again.",
    )


def _is_degenerate(answer: Output, limits: Limits) -> bool:
    content = answer.content
    if not content:
        return True
    return len(content) >= limits.shortest and top_share(content)[1] >= limits.run_share
