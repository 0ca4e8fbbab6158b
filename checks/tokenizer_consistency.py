"""Whether tokenizer, model and chat template belong together.

What it finds. Tokens that the model has no embedding for, a configuration that states another
embedding than the weights have, an end token on which the files disagree, a chat template that
ends answers with another token than generation stops at, markers of the template that the tokenizer
has no token for, a missing chat template, and padding that shares the end token's id.

Why it matters. A token beyond the vocabulary reads memory that belongs to nothing. Where training
ends an answer with one token and generation waits for another, the model never stops. A marker
that is no token is read as a handful of signs that the model never saw in that place.

How it is measured. The largest token of the examined rows is compared with the size of the
model's vocabulary; the end tokens of tokenizer_config.json, generation_config.json and
config.json with each other and with what the chat template writes after an answer. Markers are
what the template itself writes around a question and an answer in the form of a special token
(`<|im_start|>`, `<start_of_turn>`, `</s>`); each must be one token of that name.

When it is wrong. Models often name several end tokens; a disagreement matters only if generation
does not stop at the one that training uses. Sharing an id between padding and end token is
harmless in mlx-lm, which masks padding by position. Some families write their markers as plain
text on purpose: words in brackets or after signs, and the bare roles `<|user|>`, `<|assistant|>`
and `<|system|>`, are not looked at; a model that was trained so with others is warned about.

What to do. Use the tokenizer files that came with the base model, and make eos_token in
tokenizer_config.json the token that ends an answer in the chat template.
"""

import re
from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Sign, Symptom

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
_OWN_SIZES = ("embedding_size", "word_embed_proj_dim", "text_config")
_OWN_FILE = "tokenizer_config.json"
_OF_THE_BASE = "use the tokenizer that came with the base model"


@check(
    codes={
        "beyond-vocabulary": Symptom.error(
            "rows have tokens that the model has no embedding for", fix=_OF_THE_BASE
        ),
        "larger-than-model": Symptom.warning(
            "the tokenizer knows more tokens than the model",
            expected="at least as many embeddings as tokens",
            fix=_OF_THE_BASE,
        ),
        "embedding-of-other-size": Symptom.error(
            "the model's configuration states another embedding than its weights have",
            expected="vocab_size and hidden_size of the embedding that is stored",
            fix="download the model's config.json again, or state the embedding's sizes there",
        ),
        "end-tokens-disagree": Symptom.info(
            "the files name different end tokens",
            expected="the same end tokens in every file",
            fix="make sure that the token your rows end with is among them",
        ),
        "terminator-is-not-an-end-token": Symptom.warning(
            "the template ends answers with another token",
            expected="the template ends answers with an end token",
            fix="name the template's token as eos_token, or add it to generation_config.json",
        ),
        "template-markers-unknown": Symptom.warning(
            "markers of the chat template are no tokens of the tokenizer",
            expected="one token for each marker",
            fix="use the chat template that came with this tokenizer",
        ),
        "no-chat-template": Symptom.error(
            "the data are conversations, and there is no chat template",
            expected="a chat_template.jinja, or chat_template in tokenizer_config.json",
            fix="take the template from the instruction-tuned model of the same family",
        ),
        "no-end-token": Symptom.warning(
            "no file names an end token",
            expected="eos_token in tokenizer_config.json",
            fix="use the tokenizer files that came with the base model",
        ),
        "pad-is-end": Symptom.info(
            "padding and end token are the same",
            expected="padding masked by position, as mlx-lm does",
            fix="mask by position, or use another padding token",
        ),
    },
)
def tokenizer_consistency(
    tokenizer: Tokenizer,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    dataset: Dataset | None,
) -> Iterator[Sign]:
    """Compare the tokenizer with the model, the template and the data."""
    where = str(tokenizer.path)
    if base is not None:
        yield from _embedding(base)
    if base is not None and base.vocab_size is not None:
        yield from _vocabulary(tokenizer, base.vocab_size, rows)
    yield from _end_tokens(tokenizer)
    terminator = rows.terminator if rows is not None else ()
    if terminator and not set(terminator) & set(tokenizer.eos_token_ids):
        written = " ".join(tokenizer.token(one) for one in terminator[:4])
        yield Sign(
            "terminator-is-not-an-end-token",
            f"The chat template ends answers with {written!r}, and generation stops at "
            f"{_names(tokenizer, tokenizer.eos_token_ids)} only.",
            {"terminator": terminator[:16], "end_tokens": tokenizer.eos_token_ids},
            where,
        )
    train = dataset.splits.get("train") if dataset is not None else None
    needs_template = train is not None and train.format in ("chat", "completions")
    if train is None or needs_template:
        yield from _markers(tokenizer)
    can_render = tokenizer.chat_template is not None or tokenizer.renders_itself
    if train is not None and needs_template and not can_render:
        yield Sign(
            "no-chat-template",
            "The data are conversations, but the tokenizer has no chat template: mlx-lm "
            "can't turn them into text.",
            {"format": train.format},
            where,
        )
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        yield Sign(
            "pad-is-end",
            f"Padding and end token are both {tokenizer.token(tokenizer.pad_token_id)!r}: "
            f"a trainer that masks padding by its id also masks the end of every answer.",
            {"token": tokenizer.pad_token_id},
            where,
        )


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
            f"{len(unknown)} of the {len(markers)} markers that the chat template writes "
            f"are no tokens of this tokenizer, {first!r} for one, which it reads as {pieces} "
            "tokens of plain text.",
            {"markers": tuple(unknown), "of": len(markers), "pieces": pieces},
            str(tokenizer.path),
        )


def _pieces(tokenizer: Tokenizer, marker: str) -> int | None:
    """How many tokens a marker is that is read as text; None where it is a token of its own."""
    ids = tokenizer.encode(marker, add_special_tokens=False)
    is_token = len(ids) == 1 and tokenizer.decode(ids).strip() == marker
    return None if is_token else len(ids)


def _vocabulary(
    tokenizer: Tokenizer, vocabulary: int, rows: SupervisedRows | None
) -> Iterator[Sign]:
    largest = [int(row.tokens.max(initial=0)) for row in rows.rows] if rows is not None else []
    beyond = [at for at, token in enumerate(largest) if token >= vocabulary]
    if rows is not None and beyond:
        yield Sign(
            "beyond-vocabulary",
            f"{len(beyond)} of {len(rows.rows)} rows have tokens up to {max(largest)}, and the "
            f"model's vocabulary has {vocabulary}: this tokenizer belongs to another model.",
            {"largest_token": max(largest), "vocabulary": vocabulary, "rows": len(beyond)},
            where=f"row {rows.rows[beyond[0]].index + 1} of {rows.split}",
            expected=f"tokens below {vocabulary}",
        )
    elif tokenizer.vocab_size > vocabulary:
        yield Sign(
            "larger-than-model",
            f"The tokenizer knows {tokenizer.vocab_size} tokens and the model "
            f"{vocabulary}: some tokens have no embedding.",
            {"tokenizer": tokenizer.vocab_size, "vocabulary": vocabulary},
            str(tokenizer.path),
        )


def _embedding(base: BaseModel) -> Iterator[Sign]:
    stored, vocabulary, width = base.embedding_shape, base.vocab_size, base.hidden_size
    if stored is None or any(base.stated(one) is not None for one in _OWN_SIZES):
        return
    # Fewer tokens is how some families pad their embedding.
    is_larger = vocabulary is not None and vocabulary > stored[0]
    is_wider = width is not None and width != stored[1]
    said = (f"{vocabulary} tokens" * is_larger, f"a width of {width}" * is_wider)
    if is_larger or is_wider:
        yield Sign(
            "embedding-of-other-size",
            f"config.json states {' and '.join(filter(None, said))}, and the embedding has "
            f"{stored[0]} tokens of width {stored[1]}: mlx-lm does not load the model.",
            {"vocabulary": vocabulary, "width": width, "embedding": stored},
            str(base.path / "config.json"),
        )


def _end_tokens(tokenizer: Tokenizer) -> Iterator[Sign]:
    where = str(tokenizer.path)
    if not tokenizer.eos_token_ids:
        yield Sign(
            "no-end-token",
            "Neither the tokenizer nor the model names an end token: generation never "
            "stops by itself.",
            {"end_tokens": ()},
            where,
        )
        return
    own = set(tokenizer.stated_eos.get(_OWN_FILE, ()))
    for name, ids in tokenizer.stated_eos.items():
        if name != _OWN_FILE and own and not own & set(ids):
            yield Sign(
                "end-tokens-disagree",
                f"tokenizer_config.json names {_names(tokenizer, tuple(own))} as the end "
                f"token, and {name} {_names(tokenizer, ids)}; mlx-lm stops at either.",
                {"tokenizer": tuple(own), "other": ids},
                where,
            )
            return


def _names(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return ", ".join(repr(tokenizer.token(one)) for one in ids)
