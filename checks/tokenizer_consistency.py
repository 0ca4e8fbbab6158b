"""Whether tokenizer, model, chat template and rows belong together.

What it finds. Tokens that the model has no embedding for, a configuration that states another
embedding than the weights have, an end token on which the files disagree, a chat template that
ends answers with another token than generation stops at, markers of the template that the tokenizer
has no token for, padding that shares the end token's id, and rows of text that hold a question and
its answer under names of their own, such as `### Instruction:`, for a model with a template.

Why it matters. A token beyond the vocabulary reads memory that belongs to nothing. Where training
ends an answer with one token and generation waits for another, the model never stops. A marker
that is no token is read as a handful of signs that the model never saw in that place. mlx-lm
trains on rows of `text` as they stand, and asks with the template: what was learned in another
format comes through in part, and the answer often does not end.

How it is measured. The largest token of the examined rows is compared with the size of the
model's vocabulary; the end tokens of tokenizer_config.json, generation_config.json and
config.json are compared: those of the first with those of the other two, and with what the chat
template writes after an answer. Markers are
what the template itself writes around a question and an answer in the form of a special token
(`<|im_start|>`, `<start_of_turn>`, `</s>`); each must be one token of that name. In text rows the
last question is rendered with the template, and must be how the text before the answer ends.

When it is wrong. Models often name several end tokens; a disagreement matters only if generation
does not stop at the one that training uses. Sharing an id between padding and end token is
harmless in mlx-lm, which masks padding by position. Some families write their markers as plain
text on purpose: bare roles such as `<|user|>` and `<|tool|>` are not looked at.
Where the model is asked in the rows' own format, without the template, all is well.

What to do. Use the tokenizer files that came with the base model, and make eos_token in
tokenizer_config.json the token that ends an answer in the chat template. Write rows as `messages`,
or ask in their format (`--ignore-chat-template`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import check, limit
from mlxdoctor.engines.text import sampled
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.text.exchanges import exchange_in, is_rendered
from mlxdoctor.safety.quoting import quoted

#: The form of a special token that begins or ends a turn.
_MARKER = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|<(?:start|end)_of_\w{1,30}>|</?s>")
#: Written as plain text on purpose by models without such tokens.
_ROLES = frozenset(f"<|{role}|>" for role in ("system", "user", "assistant", "tool", "function"))
_CONVERSATION = (
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": "In the north."},
)
#: Settings beside which the embedding has sizes of its own: of OLMo and OPT, and of models that
#: hold one for text and others.
_SEPARATE_SIZES = ("embedding_size", "word_embed_proj_dim", "text_config")
_TOKENIZER_CONFIG = "tokenizer_config.json"
_OF_THE_BASE = "use the tokenizer that came with the base model"


@dataclass(frozen=True)
class Limits:
    """When text rows are questions and answers in another format than the template's."""

    examined: int = limit(64, unit="rows, evenly", source="all are written by one program")
    rows: int = limit(8, unit="rows", source="fewer may be examples")
    exchanges: float = limit(
        0.9,
        unit="share of rows that are a question and its answer",
        source="1.0 of six tasks in four formats, 0.0 of rules and prose",
        false_alarms="0 of 7 sound runs on rows of text, 0 of 2 text collections",
    )
    rendered: float = limit(
        0.1, unit="share of exchanges in the template's own format", source="as exchanges"
    )


@check(
    codes={
        "beyond-vocabulary": Symptom.error(
            "rows have tokens that the model has no embedding for",
            says="{rows} of {examined} rows have tokens up to {largest_token}, and the model's "
            "vocabulary has {vocabulary}: this tokenizer belongs to another model.",
            expected="tokens below {vocabulary}",
            fix=_OF_THE_BASE,
        ),
        "embedding-of-other-size": Symptom.error(
            "the model's configuration states another embedding than its weights have",
            says="config.json states "
            "[{more_tokens} tokens and a width of {other_width}|{more_tokens} tokens|a width of "
            "{other_width}], and the embedding has {tokens} tokens of width "
            "{stored_width}: mlx-lm does not load the model.",
            expected="vocab_size and hidden_size of the embedding that is stored",
            fix="download the model's config.json again, or state the embedding's sizes there",
        ),
        "end-tokens-disagree": Symptom.info(
            "the files name different end tokens",
            says="tokenizer_config.json names {tokenizer} as the end token, and {file} {other}; "
            "mlx-lm stops at either.",
            expected="the same end tokens in every file",
            fix="make sure that the token your rows end with is among them",
        ),
        "terminator-is-not-an-end-token": Symptom.warning(
            "the template ends answers with another token",
            says="The chat template ends answers with {written}, and generation stops at "
            "{end_tokens}.",
            expected="the template ends answers with an end token",
            fix="name the template's token as eos_token, or add it to generation_config.json",
        ),
        "template-markers-unknown": Symptom.warning(
            "markers of the chat template are no tokens of the tokenizer",
            says="{unknown} of the {of:* marker} that the chat template writes are no tokens "
            "of this tokenizer, {marker} for one, which it reads as {pieces} tokens of plain text.",
            expected="one token for each marker",
            fix="use the chat template that came with this tokenizer",
        ),
        "pad-is-end": Symptom.info(
            "padding and end token are the same",
            says="Padding and end token are both {token}: a trainer that masks padding by its id "
            "also masks the end of every answer.",
            expected="padding masked by position, as mlx-lm does",
            fix="mask by position, or use another padding token",
        ),
        "written-by-hand": Symptom.warning(
            "questions and answers are written as text in another format than the chat template's",
            says="The rows of {file} are questions and answers written as text, after {before} and "
            "{after}, and the model has a chat template of its own: asked with that, it is asked "
            "otherwise than it was trained.",
            expected="rows as messages, or text in the format that the chat template writes",
            fix="Write the rows as messages, which mlx-lm renders with the template, or ask "
            "without it (--ignore-chat-template).",
            in_a_plan=Severity.ERROR,
        ),
    },
    limits=Limits(),
)
def tokenizer_consistency(
    tokenizer: Tokenizer,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    dataset: Dataset | None,
    limits: Limits,
) -> Iterator[Sign | Unsought]:
    """Compare the tokenizer with the model, the template and the data."""
    where = str(tokenizer.path)
    if base is not None:
        yield from _embedding(base)
    if base is not None and base.vocab_size is not None and rows is not None:
        yield from _vocabulary(base.vocab_size, rows)
    yield from _end_tokens(tokenizer)
    terminator = rows.terminator if rows is not None else ()
    if terminator and not set(terminator) & set(tokenizer.eos_token_ids):
        yield Sign(
            "terminator-is-not-an-end-token",
            {
                "written": repr(" ".join(tokenizer.token(one) for one in terminator[:4])),
                "end_tokens": _names(tokenizer, tokenizer.eos_token_ids) or "no token",
            },
            where=where,
        )
    train = dataset.splits.get("train") if dataset is not None else None
    if train is None or train.format in ("chat", "completions"):
        yield from _markers(tokenizer)
    if dataset is not None and train is not None and train.format == "text":
        yield from _written_by_hand(dataset, tokenizer, limits)
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        token = repr(tokenizer.token(tokenizer.pad_token_id))
        yield Sign("pad-is-end", {"token": token}, where=where)


def _embedding(base: BaseModel) -> Iterator[Sign]:
    stored, vocabulary, width = base.embedding_shape, base.vocab_size, base.hidden_size
    if stored is None or any(base.stated(one) is not None for one in _SEPARATE_SIZES):
        return
    # Fewer tokens is how some families pad their embedding.
    is_larger = vocabulary is not None and vocabulary > stored[0]
    is_wider = width is not None and width != stored[1]
    if is_larger or is_wider:
        yield Sign(
            "embedding-of-other-size",
            {
                "more_tokens": vocabulary if is_larger else None,
                "other_width": width if is_wider else None,
                "tokens": stored[0],
                "stored_width": stored[1],
            },
            where=str(base.path / "config.json"),
        )


def _vocabulary(vocabulary: int, rows: SupervisedRows) -> Iterator[Sign]:
    largest = [int(row.tokens.max(initial=0)) for row in rows.rows]
    beyond = [place for place, token in enumerate(largest) if token >= vocabulary]
    if beyond:
        yield Sign(
            "beyond-vocabulary",
            {
                "rows": len(beyond),
                "examined": len(rows.rows),
                "largest_token": max(largest),
                "vocabulary": vocabulary,
            },
            where=f"row {rows.rows[beyond[0]].index + 1} of {rows.split}",
        )


def _end_tokens(tokenizer: Tokenizer) -> Iterator[Sign]:
    own = set(tokenizer.stated_eos.get(_TOKENIZER_CONFIG, ()))
    for name, ids in tokenizer.stated_eos.items():
        if name != _TOKENIZER_CONFIG and own and not own & set(ids):
            yield Sign(
                "end-tokens-disagree",
                {
                    "tokenizer": _names(tokenizer, tuple(own)),
                    "file": name,
                    "other": _names(tokenizer, ids),
                },
                where=str(tokenizer.path),
            )
            return


def _markers(tokenizer: Tokenizer) -> Iterator[Sign]:
    if tokenizer.chat_template is None:
        return
    try:
        written = tokenizer.render(_CONVERSATION) + tokenizer.render(
            _CONVERSATION[:1], add_generation_prompt=True
        )
    except TemplateFailure:
        # What a template refuses is told where the rows are rendered.
        return
    markers = [one for one in dict.fromkeys(_MARKER.findall(written)) if one not in _ROLES]
    unknown = {one: n for one in markers if (n := _pieces(tokenizer, one)) is not None}
    if unknown:
        first, pieces = next(iter(unknown.items()))
        yield Sign(
            "template-markers-unknown",
            {
                "unknown": len(unknown),
                "of": len(markers),
                "marker": repr(first),
                "markers": tuple(unknown),
                "pieces": pieces,
            },
            where=str(tokenizer.path),
        )


def _pieces(tokenizer: Tokenizer, marker: str) -> int | None:
    """How many tokens a marker is that is read as text; None where it is a token of its own."""
    ids = tokenizer.encode(marker, add_special_tokens=False)
    is_token = len(ids) == 1 and tokenizer.decode(ids).strip() == marker
    return None if is_token else len(ids)


def _written_by_hand(
    dataset: Dataset, tokenizer: Tokenizer, limits: Limits
) -> Iterator[Sign | Unsought]:
    train = dataset.splits["train"]
    if tokenizer.chat_template is None and not tokenizer.renders_itself:
        return
    places = sampled(len(train.rows), limits.examined)
    texts = [train.rows[place].get(dataset.features.text) for place in places]
    found = [exchange_in(text) for text in texts if isinstance(text, str)]
    exchanges = [one for one in found if one is not None]
    if len(exchanges) < max(limits.exchanges * len(texts), limits.rows):
        return
    rendered = 0
    for exchange in exchanges:
        question = [{"role": "user", "content": exchange.asked}]
        try:
            text = tokenizer.render(question, add_generation_prompt=True)
        except TemplateFailure as refused:
            why = f"the chat template refuses a plain question: {refused}"
            yield Unsought(("written-by-hand",), why)
            return
        rendered += is_rendered(exchange, text)
    # All rows are written by one program, in one format: a few may look rendered by chance.
    if rendered > limits.rendered * len(exchanges):
        return
    before, after = (quoted(mark, 60) for mark in exchanges[0].marks)
    yield Sign(
        "written-by-hand",
        {
            "file": train.path.name,
            "rows": len(texts),
            "exchanges": len(exchanges),
            "before": before,
            "after": after,
        },
        where=f"{train.path.name}, line {train.line_numbers[0]}",
    )


def _names(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return ", ".join(repr(tokenizer.token(one)) for one in ids)
