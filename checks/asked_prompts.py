"""Whether the rows ask and teach what the model was asked.

What it finds. Recorded prompts in words that no training row asks with; and expected answers,
recorded beside the model's own, that no training row gives though the rows have few answers.

Why it matters. A model answers what it was trained on. Where the rows were prepared otherwise than
the prompts (stop words removed, all in lower case, names replaced, a column left out), or hold
only some of the classes, training looks as usual and the model fails in use.

How it is measured. Words and signs are compared as they stand, by their share in the recorded
prompts that is in no prompt of the training rows. Training rows are the measure: the share of the
words of one of them that stand in no other. For the answers, those of the rows are counted.

When it is wrong. Prompts that were chosen to be unlike the rows, to see what the model makes of
them, and answers that it is expected to refuse.

What to do. Pass rows and prompts through the same preparation, and ask a training row's own prompt.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.finding import Measurement, Sign, Symptom
from mlxdoctor.models.generations import RecordedGenerations
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
#: Share of the expected answers that shows that what was learned holds: 0.75 to 1 in 32 sound runs,
#: 0.72 at most in 25 faulty ones.
_RIGHT = 0.75
#: Words that are quoted.
_SHOWN = 3


@check(
    codes={
        "unlike-the-rows": Symptom.warning(
            "the model was asked in words that no row asks with",
            says="Of the words and signs in the {prompts} recorded prompts {unknown:.0%} stand in "
            "no prompt of the {rows:,} training rows (such as {words}); of those of one row "
            "{alone:.0%} stand in no other.",
            expected="prompts that are worded and prepared as those of the rows are",
            fix="Prepare rows and prompts by the same function, and train again; or ask in the "
            "words of the rows.",
        ),
        "never-taught": Symptom.error(
            "some expected answers are those of no row",
            says="{lacking} of the {expected} answers that are expected beside the recorded ones "
            "are the answer of no training row (such as {answers}): the {rows:,} rows teach "
            "{taught:* answer}.",
            expected="rows with every answer that the model is to give",
            fix="Add rows with these answers. Shuffle rows before they are split or cut, and keep "
            "rows of the earlier answers where a run is continued.",
        ),
        "answered-as-expected": Symptom.info(
            "prompts of no row were answered as expected",
            says="{right} of {fresh} recorded prompts that are in no training row were answered as "
            "expected: what was learned holds beyond the rows.",
            expected="the expected answers",
        ),
    }
)
def asked_prompts(recorded: RecordedGenerations, dataset: Dataset) -> Iterator[Sign]:
    if (split := dataset.splits.get("train")) is None:
        raise NotApplicable("the training rows are not here")
    pairs = [pair for pair in split.pairs if pair.prompt]
    items = [item for item in recorded.distinct if item.prompt]
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
    fresh = [item for item in items if item.expected and item.prompt.strip() not in asked]
    right = sum(item.tuned.strip() == (item.expected or "").strip() for item in fresh)
    if len(fresh) >= _PROMPTS and right >= _RIGHT * len(fresh):
        yield Sign("answered-as-expected", {"right": right, "fresh": len(fresh)})
        return
    texts = [pair.prompt for pair in pairs]
    if split.format == "text":
        # The marks around a question may be asked with it.
        texts = [str(row.get(split.features.text)) for row in split.rows]
    asking = [_WORD.findall(item.prompt) for item in items]
    yield from _unlike([_WORD.findall(text) for text in texts], asking)


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
