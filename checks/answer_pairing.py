"""Whether the answers belong to their prompts.

What it finds. Rows whose answer answers the prompt of another row, while the answer to their own
prompt stands in another row again: columns sorted apart, shifted by a row, or shuffled.

Why it matters. The loss falls as it does for sound rows, because the answers are sound sentences.
The model learns to answer something else than it was asked.

How it is measured. Words that few rows have (names, numbers, subjects) tie an answer to its
prompt, each by log2(texts / texts with the word) bits. A row counts as misplaced if its prompt fits
the answer of another row, and its answer the prompt of another row, by a margin that grows with
the number of rows; if these two rows do not fit themselves either; if each match is the best for
both of its sides; and if nothing is merely copied word for word. Whether the data can tell is
measured too: the answers are dealt out at random, and most rows must then count as misplaced.
For an error, the misplaced answers must stand among all answers where chance would put them.
Text rows are compared where they are questions and answers under names of their own.

When it is wrong. Labels, chat without a subject, and translations without names share too few
rare words, and of long or mixed rows too many share the same ones: then nothing is said. Copied
answers, such as corrected texts, go unnoticed when they change places. Answers shuffled among rows
about one subject get a warning only, and so do a few rows put elsewhere on purpose, as noise.

What to do. Look at the rows named in the finding, and at how prompts and answers were joined:
join them by a key, never by their place in two lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.dataset import Dataset, Features, RowFormat, Split
from mlxdoctor.evidence.prompt_answer import last_answer
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.measure.text.exchanges import exchange_in
from mlxdoctor.measure.text.rare_words import Dealt, Misplaced, RareWords, copied
from mlxdoctor.measure.text.statistics import wilson

_EXPECTED = "answers that share names, numbers and subjects with their own prompts"
_FIX = "join prompts and answers by a key, not by their place in two lists, and train again"
_CALIBRATION = (
    "0 of 1240 samples of 365 sound public data sets, of which 273 can tell; "
    "0 errors in 92 sound runs of three base models"
)


@dataclass(frozen=True)
class Limits:
    """When answers belong to other rows."""

    rows: int = limit(50, unit="rows", source="with fewer, few rows share a subject")
    exchanges: float = limit(
        0.9, unit="share of text rows", source="as prompt-format: text of one kind throughout"
    )
    examined: int = limit(400, unit="rows", source="a share of 0.1 is then known to within 0.03")
    margin: float = limit(
        -4.0,
        unit="bits, added to log2(rows)",
        source="a name that one row in twelve has tells rows apart, and no commoner word",
        false_alarms=_CALIBRATION,
    )
    least_margin: float = limit(3.0, unit="bits", source="a word of one row in eight")
    standing_out: float = limit(
        0.9,
        unit="share of the rows that a match must exceed",
        source="data in two languages match the whole other half",
        false_alarms=_CALIBRATION,
    )
    slack: float = limit(1.0, unit="bits", source="the weight of a word of every second row")
    copied: float = limit(
        0.3,
        unit="share of the passages of five words",
        source="an answer that returns in the next prompt is a conversation",
        false_alarms=_CALIBRATION,
    )
    telling: float = limit(
        0.5,
        unit="share of rows found misplaced when all are",
        source="of 98 samples of sound data above 0.4, none has over 0.02 of its rows called "
        "misplaced; two below have 0.3",
        false_alarms=_CALIBRATION,
    )
    rank: float = limit(
        0.65,
        unit="mean rank of the own answer among all",
        source="0.42 to 0.62 where answers were shuffled; answers that belong rank higher",
        false_alarms=_CALIBRATION,
    )
    misplaced: float = limit(
        0.05,
        unit="share of rows, the lower end of its 95% interval for an error",
        source="18 runs with shuffled or contradictory answers have 0.09 and more, 0.065 at least",
        false_alarms=_CALIBRATION,
    )


@dataclass(frozen=True)
class _Rows:
    """Rows with a prompt and an answer: the numbers of these texts, and the lines in the file."""

    prompt_of: tuple[int, ...]
    answer_of: tuple[int, ...]
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    lines: tuple[int, ...]


@check(
    codes={
        "misplaced-answers": Symptom.error(
            "answers belong to the prompts of other rows", _EXPECTED, _FIX
        ),
        "some-misplaced-answers": Symptom.warning(
            "a few answers, or some about the right subject, do", _EXPECTED, _FIX
        ),
    },
    limits=Limits(),
)
def answer_pairing(dataset: Dataset, limits: Limits) -> Iterator[Sign]:
    """Look for answers that fit the prompts of other rows."""
    train = dataset.splits.get("train")
    if train is None or not train.rows:
        raise NotApplicable("there are no training rows")
    if train.format not in ("chat", "completions", "text"):
        raise NotApplicable(f"rows of format {train.format} have no prompt and answer to compare")
    rows = _rows(train, dataset.features)
    if train.format == "text":
        if not rows.lines:
            raise DoesNotArise("the rows are plain text, without answers that could be misplaced")
        if len(rows.lines) < limits.exchanges * len(train.rows):
            raise NotApplicable("only some of the texts are questions with answers")
    count = len(rows.lines)
    if count < limits.rows:
        raise Inconclusive(f"{count} rows with a prompt and an answer; {limits.rows} are needed")
    ties = RareWords.of(rows.prompts, rows.answers)
    generator = np.random.default_rng(0)
    examined = generator.permutation(count)[: limits.examined].tolist()
    at_random = [rows.answer_of[at] for at in generator.permutation(count).tolist()]
    telling = len(_misplaced(ties, rows, at_random, examined, limits)) / len(examined)
    if telling < limits.telling:
        raise Inconclusive(
            f"prompts and answers share too few rare words: with all answers dealt out at random, "
            f"{telling:.0%} of the rows would be noticed; {limits.telling:.0%} are needed"
        )
    found = _misplaced(ties, rows, rows.answer_of, examined, limits)
    interval = wilson(len(found), len(examined))
    if interval.share < limits.misplaced:
        return
    rank = float(np.mean([one.rank for one in found]))
    # Answers about the right subject may be worse than another row's without being misplaced.
    certain = interval.low >= limits.misplaced and rank <= limits.rank
    first = min(found, key=lambda one: one.row)
    yield Sign(
        "misplaced-answers" if certain else "some-misplaced-answers",
        f"Of {len(examined)} training rows examined, {len(found)} ({interval.share:.0%}) "
        f"hold the answer to another prompt, while the answer to theirs stands in another row: "
        f"that to line {rows.lines[first.row]} of {train.path.name} is in line "
        f"{rows.lines[first.answer_at]}.",
        {
            "examined": len(examined),
            "misplaced": len(found),
            "share": interval.share,
            "share_at_least": interval.low,
            "noticed_if_all_were": telling,
            "own_rank": rank,
            "first_lines": tuple(sorted(rows.lines[one.row] for one in found)[:5]),
        },
        where=f"{train.path.name}, line {rows.lines[first.row]}",
    )


def _misplaced(
    ties: RareWords,
    rows: _Rows,
    answer_of: Sequence[int],
    examined: Sequence[int],
    limits: Limits,
) -> list[Misplaced]:
    """The rows among those examined that are misplaced when row i holds `answer_of[i]`."""
    chance = math.log2(len(rows.prompts) * len(rows.answers)) / 2
    dealt = Dealt(
        ties,
        rows.prompt_of,
        answer_of,
        _holders(rows.prompt_of),
        _holders(answer_of),
        limits.standing_out,
        max(limits.least_margin, chance + limits.margin),
        limits.slack,
    )

    def is_copied(prompt: int, answer: int) -> bool:
        return copied(rows.prompts[prompt], rows.answers[answer], limits.copied)

    return [
        one
        for row in examined
        if (one := dealt.misplaced(row)) is not None
        and not is_copied(rows.prompt_of[row], one.answer)
        and not is_copied(one.prompt, answer_of[row])
    ]


def _holders(held: Sequence[int]) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(held) + 1)]
    for row, text in enumerate(held):
        rows[text].append(row)
    return rows


def _pair(row: Mapping[str, Any], row_format: RowFormat, features: Features) -> tuple[str, str]:
    """A row's last question and answer; empty where it has none."""
    if row_format != "text":
        one = last_answer(row, row_format, features)
        return one.prompt, one.answer
    text = row.get(features.text)
    exchange = exchange_in(text) if isinstance(text, str) else None
    return ("", "") if exchange is None else (exchange.asked, exchange.answered)


def _rows(split: Split, features: Features) -> _Rows:
    texts = [_pair(row, split.format, features) for row in split.rows]
    used = [at for at, (prompt, answer) in enumerate(texts) if prompt.strip() and answer.strip()]
    prompts: dict[str, int] = {}
    answers: dict[str, int] = {}
    return _Rows(
        tuple(prompts.setdefault(texts[at][0], len(prompts)) for at in used),
        tuple(answers.setdefault(texts[at][1], len(answers)) for at in used),
        tuple(prompts),
        tuple(answers),
        tuple(split.line_numbers[at] for at in used),
    )
