"""Whether the prompts give what the answers say.

What it finds. Answers with names that the tuned model has to guess, since they stand nowhere in
their prompts: prompts that were cut, names that were replaced in one half of a row only, contexts
that the chat template leaves out, a column of other rows.

Why it matters. The loss falls as far as the rest of the answer goes, and the run looks learned.
What it has learned is to make names up.

How it is measured. The tuned model reads held-out rows. Counted are words of the answers that
begin with a capital, that few of these answers have and the model finds unlikely, and that the
training gives no hold for: other rows ask and answer with them, this row's prompt has not got them,
and no row that asks nearly the same answers with them.

When it is wrong. Where names are to be invented, the model is to invent them. Only words with a
capital count, so that texts without one show nothing, and no free choice of words counts. A fact
that other rows state is no such name, whether it was learned or not.

What to do. Lay ten prompts beside their answers, as they are tokenized (`mlxdoctor labels`).
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.text import vocabulary
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.models.losses import ENOUGH_ROWS, RowLosses, TokenLosses
from mlxdoctor.safety.quoting import quoted

_NAME = re.compile(r"\b[^\W\d_a-z][^\W\d_]{2,}")
#: Nats from which on a word is guessed: one of three and more.
GUESSED = 1.0
#: Share of the answers that have a word of the format, or one of a few classes.
COMMON = 1 / 3
#: Shares of held-out rows with such a word: none of 40 sound runs has one row in ten, and three
#: that lacked what they asked for had 10 to 15 of 16.
SOME, MOST = 0.4, 0.6
#: Answers trained on that have a name which is one of many, rows trained on that are looked at, and
#: those of them that ask most alike.
REUSED, TRAINED, NEAREST = 3, 2000, 3
#: What stands for a name that was taken out, and the share of prompts that have one.
_PLACEHOLDER = re.compile(r"[\[<{][A-Z][A-Z_ ]{2,20}\d{0,3}[\]>}]")
REPLACED = 0.5
#: Tokens of an answer that are read.
READ = 128


@check(
    codes={
        "not-given": Symptom.warning(
            "answers hold names that their prompts do not give",
            says="In {hits} of {rows} held-out answers stands a name that the prompt does not give "
            "and other answers have, such as {example}: the tuned model can only guess it, with a "
            "probability of {probability:.0%}.",
            expected="prompts that hold what their answers name",
            fix="Lay ten rows' prompts beside their answers: a step before the training cut the "
            "prompts, left a part of them out, or replaced the names on one side only.",
        ),
    },
    rerun_symptom=True,
)
def given_facts(losses: TokenLosses, dataset: Dataset, tokenizer: Tokenizer) -> Iterator[Sign]:
    rows = [row for row in losses.compared if row.split != "train" and row.prompt_length]
    if len(rows) < ENOUGH_ROWS or "train" not in dataset.splits:
        raise Inconclusive(f"{len(rows)} held-out rows with a prompt; {ENOUGH_ROWS} are needed")
    has_no_hold = _known(dataset)
    answers = [_names(row, tokenizer) for row in rows]
    having = Counter(name for names in answers for name in names)
    guessed = dict[str, float]()
    hits = 0
    for row, names in zip(rows, answers, strict=True):
        prompt = tokenizer.decode(row.tokens[: row.prompt_length].tolist())
        unlikely = {name: loss for name, loss in names.items() if loss >= GUESSED}
        own = {
            name: loss
            for name, loss in unlikely.items()
            if having[name] <= max(2.0, COMMON * len(rows))
            and name.casefold() not in prompt.casefold()
            and has_no_hold(name, prompt)
        }
        hits += bool(own)
        guessed |= own
    if hits < SOME * len(rows):
        return
    example = min(guessed, key=lambda name: abs(guessed[name] - 3.0))
    yield Sign(
        "not-given",
        {
            "hits": hits,
            "rows": len(rows),
            "example": quoted(example),
            "probability": math.exp(-guessed[example]),
        },
        severity=Severity.ERROR if hits >= MOST * len(rows) else None,
    )


def _known(dataset: Dataset) -> Callable[[str, str], bool]:
    """Whether answers trained on have a name, and none to the prompts nearest to this one."""
    pairs = dataset.splits["train"].pairs[:TRAINED]
    asked = [vocabulary(pair.prompt) for pair in pairs]
    named = [frozenset(_NAME.findall(pair.answer)) for pair in pairs]
    answered = Counter(name for names in named for name in names)
    in_prompts = {name for pair in pairs for name in _NAME.findall(pair.prompt)}
    replaced = sum(bool(_PLACEHOLDER.search(pair.prompt)) for pair in pairs)
    # How many prompts have a word: a rare one tells more.
    having = Counter(word for words in asked for word in words)

    def has_no_hold(name: str, prompt: str) -> bool:
        is_asked = name in in_prompts or replaced >= REPLACED * len(pairs)
        if answered[name] < REUSED or not is_asked:
            return False
        words = vocabulary(prompt)
        alike = [sum(1.0 / having[word] for word in words & own) for own in asked]
        nearest = sorted(range(len(alike)), key=lambda place: -alike[place])[:NEAREST]
        return not any(name in named[place] for place in nearest)

    return has_no_hold


def _names(row: RowLosses, tokenizer: Tokenizer) -> dict[str, float]:
    """The words with a capital in an answer, and the tuned model's loss on each, nats."""
    losses = row.of("tuned").next
    places = [
        place
        for place in range(max(row.prompt_length, 1), len(row.tokens))
        if row.roles[place] == Role.ANSWER
    ][:READ]
    tokens = [int(row.tokens[place]) for place in places]
    # A token may end in the middle of a character: what it adds to the text is its own.
    ends = [len(tokenizer.decode(tokens[: count + 1])) for count in range(len(tokens))]
    spans = list(zip([0, *ends], ends, places, strict=False))
    return {
        name[0]: sum(
            float(losses[place - 1])
            for begin, end, place in spans
            if begin < name.end() and end > name.start()
        )
        for name in _NAME.finditer(tokenizer.decode(tokens))
    }
