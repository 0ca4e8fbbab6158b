"""Answers in text rows as they were written, and the same answers asked with the chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, NoSuchThing, NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.measure.text.exchanges import Exchange, exchange_in, is_rendered
from mlxdoctor.models.forward import Continuation, mean_losses
from mlxdoctor.models.load import LoadedModels, Which
from mlxdoctor.models.losses import evenly

#: Rows that are measured, and those that are looked at for them.
ROWS, LOOKED_AT = 16, 256
#: Share of the rows looked at that must be exchanges.
MOST = 0.9
#: Tokens of an answer, and of what stands before it.
ANSWER_TOKENS, PROMPT_TOKENS = 64, 512

#: Mean losses of one row's answer, nats a token: as written, and with the template.
Pair = tuple[float, float]


@dataclass(frozen=True)
class WrittenExchanges:
    """Both models' losses on answers in text rows, in the two forms.

    Attributes:
        sources: the data file, the tokenizer's and the models' files.
        marks: what stands before question and answer in the rows.
        base: the base model's, one pair a row.
        tuned: the tuned model's.
    """

    kind: ClassVar[str] = "answers with and without the template"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    marks: tuple[str, str]
    base: tuple[Pair, ...]
    tuned: tuple[Pair, ...]

    @classmethod
    def find(cls, run: RunView) -> WrittenExchanges:
        """Measured on training rows; see `Evidence`."""
        dataset = run.need(Dataset)
        train = dataset.splits.get("train")
        if train is None or train.format != "text":
            raise NotThere("the rows are written with the chat template, not as text")
        step = max(len(train.rows) // LOOKED_AT, 1)
        texts = [row.get(dataset.features.text) for row in train.rows[::step]]
        found = [exchange_in(text) for text in texts if isinstance(text, str)]
        exchanges = [one for one in found if one is not None]
        if not exchanges:
            # What holds no question is asked in no other format.
            raise NoSuchThing("the rows are text, and no questions with answers")
        if len(exchanges) < MOST * len(texts):
            raise NotThere("the rows are text, and not all of them questions with answers")
        tokenizer = run.need(Tokenizer)
        asked = [pair for one in exchanges if (pair := _both(tokenizer, one)) is not None]
        asked.sort(key=lambda pair: len(pair[0].tokens))
        # The shorter half, evenly: long ones cost more and tell the same.
        shorter = asked[: max(ROWS, len(asked) // 2)]
        chosen = [shorter[at] for at in evenly(len(shorter), ROWS)]
        if not chosen:
            raise NotThere("the model has no chat template, or the rows are written in it")
        models = run.need(LoadedModels)
        if not models.has_tuned:
            raise Missing("the adapter could not be loaded on this base model")
        source = next(one for one in dataset.sources if one.path == train.path)
        losses = {which: _losses(run, models, chosen, which) for which in _MODELS}
        sources = (source, *models.sources, *tokenizer.sources)
        return cls(
            tuple(dict.fromkeys(sources)), exchanges[0].marks, losses["base"], losses["tuned"]
        )


_MODELS: tuple[Which, ...] = ("base", "tuned")


def _both(tokenizer: Tokenizer, one: Exchange) -> tuple[Continuation, Continuation] | None:
    """The answer as it stands in the row, and after the template's prompt."""
    try:
        messages = [{"role": "user", "content": one.asked}]
        rendered = tokenizer.render(messages, add_generation_prompt=True)
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    except TemplateFailure:
        return None
    if is_rendered(one, rendered):
        return None
    start = tokenizer.encode(one.before)
    whole = tokenizer.encode(one.text)
    written = whole[len(start) :] if whole[: len(start)] == start else []
    answer = tokenizer.encode(one.answered, add_special_tokens=False)
    if not start or not written or not answer or max(len(start), len(prompt)) > PROMPT_TOKENS:
        return None
    return (
        Continuation.of(start, written[:ANSWER_TOKENS]),
        Continuation.of(prompt, answer[:ANSWER_TOKENS]),
    )


def _losses(
    run: RunView,
    models: LoadedModels,
    asked: list[tuple[Continuation, Continuation]],
    which: Which,
) -> tuple[Pair, ...]:
    texts = [text for pair in asked for text in pair]
    doing = f"asking the {which} model in its template"
    means = mean_losses(models, which, texts, run.progress, doing)
    return tuple(zip(means[::2], means[1::2], strict=True))
