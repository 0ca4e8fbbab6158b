"""Whether the answers are still the text that somebody wrote.

What it finds. Answers whose words stand in no order, as after a sort or a shuffle of the wrong
thing, and answers in which ordinary signs were replaced by escapes (`&nbsp;`, `&#46;`, `%20`), as
a web page or an address carries them.

Why it matters. The loss falls as it does on sound rows, from a higher start: which words there are
can be learned, and escapes even easily. The tuned model then answers in just that way.

How it is measured. From the rows alone. In sentences the same neighbours meet again in other rows
("of the", "such as"), 1.4 times and more as often as when the words of each answer are dealt out
anew; in words without order, as often. Only answers that hold the small words of sentences are
judged, and those with brackets, of which most are then closed before they are opened. Escapes are
counted against the length of an answer; those that markup needs (`&lt;`, `&gt;`, `&amp;`) are not
counted.

When it is wrong. Answers that are words in no order on purpose, small words among them, are called
out of order. Text in other languages than English, German, French, Spanish, Italian, Portuguese
and Dutch is not judged by its order. Where prompts have such escapes too, or speak of them, they
are taken for what is taught.

What to do. Read a few answers of the file that was trained on, and make the rows again from the
original, without the step that spoils them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from mlxdoctor.check import NotApplicable, check, limit
from mlxdoctor.engines.text import is_nested, word_order
from mlxdoctor.evidence.dataset import Dataset, Split
from mlxdoctor.evidence.prompt_answer import Pair, has_format, last_answer
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.safety.quoting import quoted

_EXPECTED = "answers as somebody wrote them"
_CALIBRATION = "0 of 46 sound runs on 7 tasks of real text, 0 of 33 of a small base"
#: Characters of an answer that are shown.
_SHOWN = 60


@dataclass(frozen=True)
class Limits:
    """When words are in no order, and when escapes are damage."""

    examined: int = limit(400, unit="rows, evenly", source="a second's work; more tell the same")
    binding: float = limit(
        0.12,
        unit="share of the small words that hold sentences together",
        source="0.23 to 0.39 in seven collections of sentences; 0.00 in JSON, code and labels",
    )
    dealt: float = limit(
        40.0,
        unit="neighbours that meet again by chance",
        source="with 43, sentences still have 2.8 times as many",
    )
    crowded: float = limit(
        0.75,
        unit="of all neighbours, that meet again by chance",
        source="where there are so few words that most do, order cannot show",
    )
    in_order: float = limit(
        1.15,
        unit="times the neighbours that meet again by chance",
        source="1.38 to 2.2 in six collections of sentences, 0.99 to 1.07 in the same, shuffled",
        false_alarms=_CALIBRATION,
    )
    plain_dealt: float = limit(
        100.0,
        unit="neighbours that meet again by chance, in answers with brackets",
        source="with 31, sound lines of code have no more than by chance",
    )
    plain_in_order: float = limit(
        1.1,
        unit="times as many as by chance, in answers with brackets",
        source="1.2 in JSON, 1.7 in code, 0.94 to 1.00 in the same, shuffled",
    )
    with_brackets: float = limit(
        0.5, unit="share of answers with brackets", source="designed: JSON and code"
    )
    nested: float = limit(
        0.75,
        unit="share of answers with brackets whose brackets are closed in turn",
        source="0.90 to 1.00 in seven tasks, 0.23 to 0.62 in the same with words shuffled",
    )
    escaped: float = limit(
        0.02,
        unit="escapes to a character of an answer, two at least",
        source="0.1 where each space was escaped; a web page has a few in all",
    )
    escaped_badly: float = limit(
        0.2,
        unit="share of rows with an escaped answer, for an error",
        source="as damaged-answers",
        false_alarms=_CALIBRATION,
    )
    escaped_note: float = limit(
        0.05, unit="share of rows with an escaped answer", source="a few may quote a web page"
    )
    asked: float = limit(
        0.1,
        unit="share of prompts that have escapes, or speak of them",
        source="designed: then escapes are what is asked for",
    )


@check(
    codes={
        "words-out-of-order": Symptom.error(
            "the words of the answers stand in no order",
            expected=_EXPECTED,
            fix="look for a step that sorts or shuffles words, and make the rows again without it",
        ),
        "escaped-answers": Symptom.error(
            "answers are full of escapes where ordinary signs belong",
            expected=_EXPECTED,
            fix="undo the escapes (in Python: html.unescape, urllib.parse.unquote), take the tags "
            "away, and write the rows again",
        ),
    },
    limits=Limits(),
)
def answer_text(dataset: Dataset, limits: Limits) -> Iterator[Sign | Seen | Unsought]:
    """Look at the answers' words and signs."""
    train = dataset.splits.get("train")
    if train is None or not train.rows:
        return
    if train.format == "unknown":
        # Pairs of answers, say: the row as a whole is no text that somebody wrote.
        raise NotApplicable("the rows are in no format of one prompt and one answer")
    step = max(len(train.rows) // limits.examined, 1)
    looked_at = range(0, len(train.rows), step)[: limits.examined]
    features = dataset.features
    places = [at for at in looked_at if has_format(train.rows[at], train.format, features)]
    pairs = [last_answer(train.rows[at], train.format, features) for at in places]
    yield from _order(train, pairs, limits)
    yield from _escapes(train, pairs, places, limits)


def _order(split: Split, pairs: Sequence[Pair], limits: Limits) -> Iterator[Sign | Seen | Unsought]:
    found = word_order([one.answer for one in pairs])
    neighbours = found.words - found.texts
    are_sentences = found.function_words >= limits.binding
    nested = [one for pair in pairs if (one := is_nested(pair.answer)) is not None]
    share = sum(nested) / len(nested) if nested else 1.0
    if not are_sentences and len(nested) < limits.with_brackets * len(pairs):
        why = "the answers are no sentences of a language whose small words are known here"
        yield Unsought(("words-out-of-order",), why)
        return
    least = limits.dealt if are_sentences else limits.plain_dealt
    if found.dealt < least or found.dealt > limits.crowded * neighbours:
        yield Unsought(("words-out-of-order",), "too few different words stand side by side")
        return
    measured: dict[str, Measurement] = {
        "rows": found.texts,
        "words": found.words,
        "again": found.again,
        "by_chance": round(found.dealt, 1),
        "ratio": round(found.ratio, 3),
        "small_words": round(found.function_words, 3),
        "nested": round(share, 3) if nested else None,
    }
    said = f"{found.again:,} neighbouring words of the answers meet again in another row"
    if not are_sentences and share >= limits.nested:
        return
    if found.ratio > (limits.in_order if are_sentences else limits.plain_in_order):
        yield Seen(f"{said}, {found.ratio:.1f} times as many as by chance.", measured)
        return
    yield Sign(
        "words-out-of-order",
        f"The words of the answers stand in no order: {said}, and {found.dealt:,.0f} do when the "
        f"words of each are dealt out anew ({found.texts:,} rows of {split.path.name}).",
        measured,
        where=split.path.name,
    )


def _escapes(
    split: Split, pairs: Sequence[Pair], places: Sequence[int], limits: Limits
) -> Iterator[Sign]:
    asked = sum(_is_about_escapes(one.prompt) for one in pairs) / len(pairs)
    if asked >= limits.asked:
        return
    counts = [len(_escape().findall(one.answer)) for one in pairs]
    spoilt = [
        at
        for at, (one, count) in enumerate(zip(pairs, counts, strict=True))
        if count >= max(2, limits.escaped * len(one.answer))
    ]
    share = len(spoilt) / len(pairs)
    if share < limits.escaped_note:
        return
    first = spoilt[0]
    yield Sign(
        "escaped-answers",
        f"{len(spoilt)} of {len(pairs)} answers are full of escapes where ordinary signs belong, "
        f"such as {quoted(pairs[first].answer, _SHOWN)}.",
        {
            "rows": len(spoilt),
            "examined": len(pairs),
            "share": round(share, 3),
            "escapes": sum(counts[at] for at in spoilt),
        },
        where=f"{split.path.name}, line {split.line_numbers[places[first]]}",
        severity=None if share >= limits.escaped_badly else Severity.WARNING,
    )


def _is_about_escapes(prompt: str) -> bool:
    return _escape().search(prompt) is not None or _talk().search(prompt) is not None


@cache
def _escape() -> re.Pattern[str]:
    """Escapes of signs that text can hold as they are, those that hide another escape included."""
    needless = r"&(?:amp;)?(?!(?:lt|gt|amp);)(?:#\d{2,6}|#x[0-9a-fA-F]{2,5}|[a-z]{2,8});"
    return re.compile(rf"{needless}|%[2-7][0-9A-F]")


@cache
def _talk() -> re.Pattern[str]:
    return re.compile(
        r"\b(?:html|xml|xhtml|entit(?:y|ies)|escaped?|url-?encod|percent-encod)", re.I
    )
