"""Whether the rows ask and teach what the model was asked.

What it finds. Recorded prompts in words that no training row asks with; expected answers, recorded
beside the model's own, that no training row gives though the rows have few answers, or that are
longer than any row's; and expected answers that take up more, or less, of their prompts than those
of similar rows, or that another column of the rows has.

Why it matters. A model answers what it was trained on. Where the rows were prepared otherwise than
the prompts (stop words removed, all in lower case, names replaced, a column left out), or hold
only some of the classes, training looks as usual and the model fails in use.

How it is measured. Words and signs are compared as they stand, by their share in the recorded
prompts that is in no prompt of the training rows. Training rows are the measure: the share of the
words of one of them that stand in no other. For the answers, those of the rows are counted. Of
each prompt the five rows with the most words in common are found: the share of the answers' words
that stand in their own prompts, and the words that they have of the expected answer, are compared.
Rows for a test stand in where nothing was recorded.

When it is wrong. Prompts that were chosen to be unlike the rows, to see what the model makes of
them, and answers that it is expected to refuse.

What to do. Pass rows and prompts through the same preparation, and ask a training row's own prompt.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.dataset import Dataset, Pair, Split
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.text.nearest_rows import agreement, nearest, taken_up
from mlxdoctor.measure.text.statistics import SIGNIFICANCE
from mlxdoctor.models.generations import Generation, RecordedGenerations
from mlxdoctor.safety.quoting import quoted

_WORD = re.compile(r"\w+|[^\w\s]")
#: Fewest prompts and rows that tell.
_PROMPTS, _FEWEST = 8, 20
#: Share of unknown words beyond that of the rows themselves: 0.18 to 0.76 in 7 runs whose
#: rows were prepared otherwise, 0.12 at most in 81 sound ones.
_UNKNOWN = 0.17
#: Distinct answers a row, at most, of rows that teach labels; share of the expected answers that
#: no row has, from and to: 0.43 and 0.67 in two faulty runs, 0 in 31 sound ones. Where none is
#: taught, they may be written in another way.
_LABELS, _SOME, _MOST = 0.2, 0.2, 0.8
#: By how much the share of an answer's words that stand in its prompt differs from that of similar
#: rows, in standard errors too: 0.13 to 0.47 in six runs whose rows were cut, converted, joined
#: wrongly or given away, 0.03 at most in 62 others. And by how much more of the expected answers
#: another column has. Rows for a test that are looked at.
_TAKEN_UP, _ERRORS, _BETTER, _TESTED = 0.08, 4.0, 0.08, 100
#: Share of the expected answers that shows that what was learned holds: 0.75 to 1 in 32 sound runs,
#: 0.72 at most in 25 faulty ones.
_RIGHT = 0.75
#: Signs that take recorded prompts, and such that take expected answers.
_OF_RECORDED = ("unlike-the-rows", "never-taught", "longer-than-taught", "answered-as-expected")
_OF_EXPECTED = ("taken-up", "another-column")
#: Words that are quoted.
_SHOWN = 3


@check(
    codes={
        "unlike-the-rows": Symptom.warning(
            "the model was asked in words that no row asks with",
            says="Of the words and signs in the {prompts} recorded prompts, {unknown:.0%} occur in "
            "no prompt of the {rows:,} training rows (such as {words}). Of the words in one "
            "training row, {alone:.0%} occur in no other row.",
            expected="prompts that are worded and prepared as those of the rows are",
            fix="Prepare rows and prompts by the same function, and train again; or ask in the "
            "words of the rows.",
        ),
        "never-taught": Symptom.error(
            "some expected answers are those of no row",
            says="{lacking} of the {expected} expected answers are not the answer of any training "
            "row (such as {answers}): the {rows:,} rows teach {taught:* answer}.",
            expected="rows with every answer that the model is to give",
            fix="Add rows with these answers. Shuffle rows before they are split or cut, and keep "
            "rows with the earlier answers when you continue a run.",
        ),
        "longer-than-taught": Symptom.error(
            "expected answers that are longer than any that a row teaches are answered wrongly",
            says="{longer} of {expected} expected answers are longer than the longest of the "
            "{rows:,} training answers, which has {longest} characters. Of these {wrong} were "
            "answered wrongly, and of the others {others_wrong}. {example} is expected.",
            expected="rows with answers as long as those that are expected",
            fix="Look for a step that leaves out or cuts rows by their length, and make the rows "
            "again without it.",
        ),
        "taken-up": Symptom.error(
            "expected answers take up more or less of their prompts than the rows' answers do",
            says="Of the words of {count} expected answers, {wanted:.0%} also stand in their "
            "prompts; for the answers of similar rows it is {taught:.0%}. For the prompt {asked} "
            "the answer {expected} is expected. A row with the prompt {like} has the answer "
            "{answered}.",
            expected="rows in which the answers are made from their prompts as expected",
            fix="Compare ten rows with the expected answers. Look for a step that cut, converted, "
            "wrongly joined or filled in text, and make the rows again without it.",
        ),
        "another-column": Symptom.error(
            "another column of the rows has the expected answers",
            says="The column {column} shares {other:.0%} of its words (F1) with the expected "
            "answers to similar prompts. The column that is trained on shares {own:.0%}. The "
            "expected answer to {asked} is {expected}. A similar row has the answer {answered}, "
            "and {text} in {column}.",
            expected="the column trained on that has the expected answers",
            fix="Name the column in completion_feature, and train again.",
        ),
        "answered-as-expected": Symptom.info(
            "prompts of no row were answered as expected",
            says="{right} of {fresh} recorded prompts that are in no training row were answered as "
            "expected: what was learned holds beyond the rows.",
            expected="the expected answers",
        ),
    }
)
def asked_prompts(
    recorded: RecordedGenerations | None, dataset: Dataset
) -> Iterator[Sign | Unsought]:
    if (split := dataset.splits.get("train")) is None:
        raise NotApplicable("the training rows are not here")
    items = [item for item in recorded.distinct if item.prompt] if recorded is not None else []
    if not items:
        test = dataset.splits.get("test")
        if test is None:
            raise NotApplicable("no prompts were recorded, and no rows are for a test")
        # Rows for a test may be of another kind, and be meant so.
        yield from _beside_similar(split, test.pairs[:_TESTED], Severity.WARNING)
        yield Unsought(_OF_RECORDED, "no prompts were recorded")
        return
    pairs = [pair for pair in split.pairs if pair.prompt]
    if len(items) < _PROMPTS or len(pairs) < _FEWEST:
        raise Inconclusive(f"{len(items)} recorded prompts and {len(pairs)} rows are too few")
    taught = Counter(pair.answer.strip() for pair in pairs)
    wanted = [item.expected.strip() for item in items if item.expected]
    lacking = [answer for answer in wanted if answer not in taught]
    is_part = _SOME * len(wanted) <= len(lacking) <= _MOST * len(wanted)
    if lacking and is_part and len(taught) <= _LABELS * len(pairs):
        figures: dict[str, Measurement] = {"lacking": len(lacking), "expected": len(wanted)}
        figures |= {"rows": len(pairs), "taught": len(taught), "answers": quoted(lacking[0])}
        yield Sign("never-taught", figures)
    asked = {pair.prompt.strip() for pair in pairs}
    yield from _longer([item for item in items if item.expected], max(map(len, taught)), len(pairs))
    fresh = [item for item in items if item.expected and item.prompt.strip() not in asked]
    right = sum(item.tuned.strip() == (item.expected or "").strip() for item in fresh)
    if len(fresh) >= _PROMPTS and right >= _RIGHT * len(fresh):
        yield Sign("answered-as-expected", {"right": right, "fresh": len(fresh)})
        return
    expected = [Pair(item.prompt, item.expected or "") for item in items]
    yield from _beside_similar(split, expected)
    texts = [pair.prompt for pair in pairs]
    if split.format == "text":
        # The marks around a question may be asked with it.
        texts = [str(row.get(split.features.text)) for row in split.rows]
    asking = [_WORD.findall(item.prompt) for item in items]
    yield from _unlike([_WORD.findall(text) for text in texts], asking)


def _longer(items: Sequence[Generation], longest: int, rows: int) -> Iterator[Sign]:
    """Expected answers that go beyond the rows' longest, where they alone are answered wrongly."""
    longer, others = list[bool](), list[bool]()
    example = ""
    for item in items:
        own, wanted = item.tuned.strip(), (item.expected or "").strip()
        # What breaks off on its way to a long answer came to a limit of the evaluation.
        is_wrong = not wanted.startswith(own or " ")
        (longer if len(wanted) > longest else others).append(is_wrong)
        example = example or (wanted if is_wrong and len(wanted) > longest else "")
    beyond, count = len(longer), len(items)
    # That so many of all answers are the longest ones by chance.
    chance = math.comb(count, beyond) / math.comb(count + rows, beyond)
    if not others or not longer or chance >= SIGNIFICANCE:
        return
    wrong, others_wrong = sum(longer), sum(others)
    if wrong >= _RIGHT * beyond and others_wrong <= (1.0 - _RIGHT) * len(others):
        figures: dict[str, Measurement] = {"longer": beyond, "expected": count, "rows": rows}
        figures |= {"longest": longest, "example": quoted(example)}
        yield Sign("longer-than-taught", {**figures, "wrong": wrong, "others_wrong": others_wrong})


def _beside_similar(
    split: Split, expected: Sequence[Pair], severity: Severity | None = None
) -> Iterator[Sign | Unsought]:
    """What is expected beside the rows with similar prompts."""
    wanted = [pair for pair in expected if pair.prompt and pair.answer]
    # Rows without an answer have a sign of their own.
    both = [(row, pair) for row, pair in zip(split.rows, split.pairs, strict=True) if pair.answer]
    rows = [pair for _, pair in both]
    if len(wanted) < _PROMPTS or len(rows) < _FEWEST or not rows[0].prompt:
        why = f"{len(wanted)} expected answers and {len(rows)} rows with a prompt are too few"
        yield Unsought(_OF_EXPECTED, why)
        return
    near = nearest([row.prompt for row in rows], [pair.prompt for pair in wanted])
    share = taken_up(rows, wanted, near)
    if abs(share.difference) >= _TAKEN_UP and abs(share.difference) >= _ERRORS * share.error:
        figures: dict[str, Measurement] = {"count": len(wanted), "taught": share.taught}
        figures |= {"wanted": share.expected, "like": quoted(rows[share.row].prompt)}
        figures |= _example(wanted[share.place], rows[share.row])
        yield Sign("taken-up", figures, severity=severity)
    for column in _other_columns(split):
        texts = [str(row.get(column)) for row, _ in both]
        shared = agreement((texts, [row.answer for row in rows]), wanted, near)
        if shared.difference >= max(_BETTER, _ERRORS * shared.error):
            figures = {"column": column, "other": shared.expected, "own": shared.taught}
            figures |= {"text": quoted(texts[shared.row])}
            figures |= _example(wanted[shared.place], rows[shared.row])
            yield Sign("another-column", figures, severity=severity)


def _other_columns(split: Split) -> list[str]:
    """The columns of text of a completion that are neither what is asked nor what is answered."""
    if split.format != "completions":
        return []
    used = {split.features.prompt, split.features.completion}
    return [
        key for key, value in split.rows[0].items() if isinstance(value, str) and key not in used
    ]


def _example(wanted: Pair, row: Pair) -> dict[str, Measurement]:
    texts = {"asked": wanted.prompt, "expected": wanted.answer, "answered": row.answer}
    return {name: quoted(text) for name, text in texts.items()}


def _unlike(known: Sequence[list[str]], asked: Sequence[list[str]]) -> Iterator[Sign]:
    holders = Counter(chain.from_iterable(map(set, known)))
    words = list(chain.from_iterable(asked))
    unknown = Counter(word for word in words if word not in holders)
    alone = sum(holders[word] == 1 for word in chain.from_iterable(known))
    share, usual = unknown.total() / max(len(words), 1), alone / max(sum(map(len, known)), 1)
    if share - usual >= _UNKNOWN:
        examples = ", ".join(quoted(word) for word, _ in unknown.most_common(_SHOWN))
        figures: dict[str, Measurement] = {"prompts": len(asked), "rows": len(known)}
        figures |= {"unknown": share, "alone": usual, "words": examples}
        yield Sign("unlike-the-rows", figures)
