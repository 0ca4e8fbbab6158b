"""Whether tokenizer, model, chat template and rows belong together.

What it finds. Tokens that the model has no embedding for, end tokens on which the files or the
template disagree, markers of the template that are no tokens or were never trained, padding that
shares the end token's id, and questions and answers written as text for a model with a template.

Why it matters. A token beyond the vocabulary reads memory that belongs to nothing. Where training
ends an answer with one token and generation waits for another, the model never stops. A marker
that is no token is read as a handful of signs that the model never saw in that place. Markers whose
embeddings are equal cannot be told apart, and an adapter rarely trains embeddings. mlx-lm
trains on rows of `text` as they stand, and asks with the template: what was learned in another
format comes through in part, and the answer often does not end.

How it is measured. The largest token of the examined rows is compared with the model's vocabulary;
the end tokens of tokenizer_config.json with those of generation_config.json and config.json, and
with what the template writes after an answer. Markers are what the template writes around a
question and an answer in the form of a special token (`<|im_start|>`, `<start_of_turn>`, `</s>`).
Those are untrained whose rows are zero, or differ from another marker's by less than a hundredth of
their length. Only their rows are read: of the embedding, and of a head that is not tied to it. A
tuned model's are taken where it has them. In text rows the last question is rendered with the
template, and must be how the text before the answer ends.

When it is wrong. Models often name several end tokens; a disagreement matters only if generation
does not stop at the one that training uses. mlx-lm masks padding by position, whatever its id.
Bare roles such as `<|user|>` are plain text on purpose in some families, and are not looked at.
Where the model is asked in the rows' own format, without the template, all is well. A row of a
marker that was set to another's on purpose, as a start for training it, looks untrained. Nothing
is said where the adapter is on the embedding or the head.

What to do. Use the tokenizer files that came with the base model, and make eos_token in
tokenizer_config.json the token that ends an answer in the chat template. Write rows as `messages`,
or ask in their format (`--ignore-chat-template`). Train chats on the instruct version of a base.
"""

import re
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from mlxdoctor.check import check
from mlxdoctor.engines.text import evenly
from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.exchanges import exchange_in
from mlxdoctor.evidence.quantized import Stored
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought, some_of
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import quoted

#: The form of a special token that begins or ends a turn.
_MARKER = re.compile(r"<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|<(?:start|end)_of_\w{1,30}>|</?s>")
#: How a vocabulary writes a token of control, `[INST]` included; `<0x0A>` is a byte.
_CONTROL = re.compile(r"<(?!0x).+>|\[.+\]")
#: Markers whose rows are read, at most: the templates of 6 models write 2 to 4.
_MOST_MARKERS = 64
#: Share of the rows from which on a token of their targets is taught: a label of 20.
_OFTEN = 0.05
#: Length of the difference of two rows over that of the longer one: 0.14 or more of two markers of
#: 6 sound models, at most 2e-4 of rows that transformers adds; and the length of a row of zeros.
_EQUAL, _ZERO = 0.01, 1e-6
#: Written as plain text on purpose by models without such tokens.
_ROLES = frozenset(f"<|{role}|>" for role in ("system", "user", "assistant", "tool", "function"))
_CONVERSATION = (
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": "In the north."},
)
_TOKENIZER_CONFIG = "tokenizer_config.json"
_OF_THE_BASE = "use the tokenizer that came with the base model"

#: Rows of text that are examined, evenly: all are written by one program. Fewer than so many that
#: are a question and its answer may be examples.
_EXAMINED, _LEAST = 64, 8
#: Share of rows that are a question and its answer: 1.0 of six tasks in four formats, 0.0 of rules
#: and prose, of 7 sound runs on rows of text and of 2 text collections; and the share of those in
#: the template's own format, which a few may look like by chance.
_EXCHANGES, _RENDERED = 0.9, 0.1


@check(
    codes={
        "beyond-vocabulary": Symptom.error(
            "rows have tokens that the model has no embedding for",
            says="{rows} of {examined} rows have tokens up to {largest_token}, and the model's "
            "vocabulary has {vocabulary}: this tokenizer belongs to another model.",
            expected="tokens below {vocabulary}",
            fix=_OF_THE_BASE,
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
        "markers-untrained": Symptom.error(
            "the model has no trained embedding for tokens of the chat template or of the answers",
            says="{untrained} of {markers:* token} that the chat template writes or the answers "
            "hold have no embedding of their own: {tokens} ({rows}). Nothing here trains them[, "
            "and {end} is to end the answers][, and answers hold {answer}].",
            expected="an embedding of its own for each marker",
            fix="Use the base's instruct version, or train the embedding as well (embed_tokens "
            "among the keys), or use a template whose markers the base knows.",
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
            "{after}. The model has its own chat template. Prompts written with that template "
            "differ from the rows it was trained on.",
            expected="rows as messages, or text in the format that the chat template writes",
            fix="Write the rows as messages, which mlx-lm renders with the template, or ask "
            "without it (--ignore-chat-template).",
            in_a_plan=Severity.ERROR,
        ),
    },
)
def tokenizer_consistency(
    tokenizer: Tokenizer,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    dataset: Dataset | None,
    *,
    config: TrainingConfig | None,
    adapter: Adapter | None,
    tuned: TunedModel | None,
) -> Iterator[Sign | Unsought]:
    where = str(tokenizer.path)
    if base is not None and base.vocab_size is not None and rows is not None:
        yield from _vocabulary(base.vocab_size, rows)
    own = tokenizer.stated_eos.get(_TOKENIZER_CONFIG, ())
    for file, ids in tokenizer.stated_eos.items():
        if own and not set(own) & set(ids):
            ends = {"tokenizer": _names(tokenizer, own), "other": _names(tokenizer, ids)}
            yield Sign("end-tokens-disagree", {**ends, "file": file}, where=where)
            break
    terminator = rows.terminator if rows is not None else ()
    if terminator and not set(terminator) & set(tokenizer.eos_token_ids):
        written = repr(" ".join(tokenizer.token(token) for token in terminator[:4]))
        ends = {"end_tokens": _names(tokenizer, tokenizer.eos_token_ids) or "no token"}
        yield Sign("terminator-is-not-an-end-token", {"written": written, **ends}, where=where)
    train = dataset.splits.get("train") if dataset is not None else None
    if train is None or train.format in ("chat", "completions"):
        written = _written(tokenizer)
        yield from _markers(tokenizer, written)
        if base is not None:
            matrices = _token_matrices(base, tuned)
            keys = (config and config.keys) or ()
            trained = keys if adapter is None else [module.name for module in adapter.modules]
            if not {*map(_last, matrices)} & {*map(_last, trained)}:
                answer_ends = {*terminator, *tokenizer.eos_token_ids}
                yield from _untrained(tokenizer, written, _taught(rows), answer_ends, matrices)
    if dataset is not None and train is not None and train.format == "text":
        yield from _written_by_hand(dataset, tokenizer)
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        token = repr(tokenizer.token(tokenizer.pad_token_id))
        yield Sign("pad-is-end", {"token": token}, where=where)


def _vocabulary(vocabulary: int, rows: SupervisedRows) -> Iterator[Sign]:
    largest = [int(row.tokens.max(initial=0)) for row in rows.rows]
    beyond = [place for place, token in enumerate(largest) if token >= vocabulary]
    if beyond:
        counts = {"rows": len(beyond), "examined": len(rows.rows)}
        figures = {**counts, "largest_token": max(largest), "vocabulary": vocabulary}
        where = f"row {rows.rows[beyond[0]].index + 1} of {rows.split}"
        yield Sign("beyond-vocabulary", figures, where=where)


def _written(tokenizer: Tokenizer) -> str:
    """What the template makes of a conversation; nothing where there is none or it refuses it."""
    if tokenizer.chat_template is None:
        return ""
    try:
        return tokenizer.render(_CONVERSATION) + tokenizer.render(
            _CONVERSATION[:1], add_generation_prompt=True
        )
    except TemplateFailure:
        # What a template refuses is told where the rows are rendered.
        return ""


def _markers(tokenizer: Tokenizer, written: str) -> Iterator[Sign]:
    pieces: dict[str, int] = {}
    markers = [marker for marker in dict.fromkeys(_MARKER.findall(written)) if marker not in _ROLES]
    for marker in markers:
        ids = tokenizer.encode(marker, add_special_tokens=False)
        if len(ids) != 1 or tokenizer.decode(ids).strip() != marker:
            pieces[marker] = len(ids)
    for first, count in list(pieces.items())[:1]:
        figures: dict[str, Measurement] = {"unknown": len(pieces), "of": len(markers)}
        figures |= {"marker": repr(first), "markers": tuple(pieces), "pieces": count}
        yield Sign("template-markers-unknown", figures, where=str(tokenizer.path))


def _token_matrices(base: BaseModel, tuned: TunedModel | None) -> dict[str, Stored]:
    """The embedding and a head that is not tied to it, by module; the tuned model's come first."""
    shape = (base.vocab_size, base.hidden_size)
    matrices: dict[str, Stored] = {}
    for module in base.linear_shapes:
        if base.shape(module) == shape and layer_of(module)[0] is None:
            name = f"{module}.weight"
            own = tuned.tensors.get(name) if tuned is not None else None
            matrices[module] = own if own is not None and own.shape == shape else base.stored[name]
    return matrices


def _taught(rows: SupervisedRows | None) -> list[int]:
    """The tokens that are targets in many rows: no model knows every rare token."""
    if rows is None or not rows.rows:
        return []
    held = np.concatenate([np.unique(row.targets) for row in rows.rows])
    tokens, counts = np.unique(held, return_counts=True)
    return [int(token) for token in tokens[counts >= _OFTEN * len(rows.rows)]]


def _untrained(
    tokenizer: Tokenizer,
    written: str,
    taught: Collection[int],
    ends: Collection[int],
    matrices: Mapping[str, Stored],
) -> Iterator[Sign | Unsought]:
    size = min((matrix.shape[0] for matrix in matrices.values()), default=0)
    tokens = dict.fromkeys(tokenizer.encode(written, add_special_tokens=False))
    control = [token for token in tokens if _CONTROL.fullmatch(tokenizer.token(token))]
    # Tokens that were added to a vocabulary stand at its end.
    added = sorted({*taught} - {*control}, reverse=True)[:_MOST_MARKERS]
    markers = [token for token in (*control, *added) if token < size][: 2 * _MOST_MARKERS]
    if not markers:
        return
    spans = [(token, token + 1) for token in markers]
    try:
        rows = np.concatenate([matrix.rows(*spans) for matrix in matrices.values()], axis=1)
    except InputError as error:
        yield Unsought(("markers-untrained",), str(error))
        return
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.square(rows, dtype=np.float64).sum(axis=1)
        gaps = squares[:, None] + squares - 2 * rows.astype(np.float64) @ rows.T
        np.fill_diagonal(gaps, np.inf)
        is_equal = (gaps < _EQUAL**2 * np.maximum(squares[:, None], squares)).any(axis=1)
    is_zero = squares < _ZERO**2
    untrained = [markers[place] for place in np.flatnonzero(is_equal | is_zero)]
    if untrained:
        kinds = [(is_equal.any(), "equal rows"), (is_zero.any(), "rows of zeros")]
        names = {token: quoted(tokenizer.token(token)) for token in untrained}
        end = next((names[token] for token in untrained if token in ends), None)
        answer = next((names[token] for token in untrained if token in {*added}), None)
        figures: dict[str, Measurement] = {
            "untrained": len(untrained),
            "markers": len(markers),
            "tokens": some_of([*names.values()]),
            "rows": " and ".join(kind for is_there, kind in kinds if is_there),
            "end": end,
            "answer": answer,
        }
        severity = Severity.WARNING if end is answer is None else None
        yield Sign("markers-untrained", figures, where=some_of([*matrices]), severity=severity)


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _written_by_hand(dataset: Dataset, tokenizer: Tokenizer) -> Iterator[Sign | Unsought]:
    train = dataset.splits["train"]
    if tokenizer.chat_template is None and not tokenizer.renders_itself:
        return
    rows = [train.rows[place] for place in evenly(len(train.rows), _EXAMINED)]
    texts = [row.get(dataset.features.text) for row in rows]
    read = [exchange_in(text) for text in texts if isinstance(text, str)]
    exchanges = [exchange for exchange in read if exchange is not None]
    if len(exchanges) < max(_EXCHANGES * len(texts), _LEAST):
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
        rendered += exchange.before.endswith(text[text.rfind(exchange.asked) :].rstrip())
    if rendered > _RENDERED * len(exchanges):
        return
    before, after = map(quoted, exchanges[0].marks)
    figures = {"rows": len(texts), "exchanges": len(exchanges)}
    marks = {"file": train.path.name, "before": before, "after": after}
    where = f"{train.path.name}, line {train.line_numbers[0]}"
    yield Sign("written-by-hand", {**figures, **marks}, where=where)


def _names(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return ", ".join(repr(tokenizer.token(token)) for token in ids)
