"""How well both models predict ordinary sentences that no fine-tune is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.forward import Continuation, mean_losses
from mlxdoctor.models.load import LoadedModels, Which

#: Questions and answers of everyday life, written for this purpose: no data set holds them.
GENERAL_TEXTS = (
    (
        "Why does bread rise in the oven?",
        "Yeast makes small bubbles of gas in the dough, and the heat makes the bubbles larger.",
    ),
    (
        "How do I get from the station to the museum?",
        "Leave the station by the main door, turn left, and walk along the river for ten minutes.",
    ),
    (
        "What should I pack for a weekend at the lake?",
        "Take a towel, something warm for the evening, good shoes, and a book in case it rains.",
    ),
    (
        "My tomato plants look tired. What is wrong?",
        "They probably need more water. Water them early in the morning, close to the roots.",
    ),
    (
        "Write a short note to a neighbour about noise.",
        "Dear neighbour, the music last night was rather loud. Could you turn it down after ten?",
    ),
    (
        "What happens when water freezes?",
        "It turns into ice, which takes up more room than the water did, so it floats.",
    ),
    (
        "Tell me about your grandmother's kitchen.",
        "It was small and always warm, and there was a blue bowl of apples on the table.",
    ),
    (
        "Is it better to learn the piano as a child?",
        "It is easier to begin early, but many people start as adults and enjoy it very much.",
    ),
    (
        "How do you mend a flat bicycle tyre?",
        "Take the wheel off, find the hole in the tube, put a patch on it, and pump it up again.",
    ),
    (
        "Why are old maps so often wrong?",
        "The people who drew them had not seen most of the places, and trusted what sailors said.",
    ),
    (
        "Describe a quiet street on a Sunday morning.",
        "The shops are closed, a cat sleeps on a wall, and somewhere a window is being opened.",
    ),
    (
        "What did the meeting decide?",
        "We agreed to meet again on Tuesday, after everyone has read the plan and its costs.",
    ),
)


@dataclass(frozen=True)
class GeneralText:
    """Both models' mean losses on each answer of `GENERAL_TEXTS`, nats a token.

    Attributes:
        sources: the models' files.
        base: the base model's, one a text.
        tuned: the tuned model's.
        vocab_size: the size of the tokenizer's vocabulary: ln of it is a uniform guess.
    """

    kind: ClassVar[str] = "losses on general text"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    base: tuple[float, ...]
    tuned: tuple[float, ...]
    vocab_size: int

    @classmethod
    def find(cls, run: RunView) -> GeneralText:
        """Measured with both models; see `Evidence`."""
        tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
        if not models.has_tuned:
            raise Missing("the adapter could not be loaded on this base model")
        if not run.budget.left:
            raise Missing(run.budget.spent)
        asked = [_rendered(tokenizer, *text) for text in GENERAL_TEXTS]
        losses: dict[Which, tuple[float, ...]] = {}
        which: Which
        for which in ("base", "tuned"):
            doing = f"reading general text with the {which} model"
            losses[which] = tuple(mean_losses(models, which, asked, run.progress, doing))
        sizes = models.base.vocab_size or tokenizer.vocab_size
        sources = (*models.sources, *tokenizer.sources)
        return cls(tuple(dict.fromkeys(sources)), losses["base"], losses["tuned"], sizes)


def _rendered(tokenizer: Tokenizer, question: str, answer: str) -> Continuation:
    """In the chat template where there is one; the answer alone is to be predicted."""
    try:
        asked = [{"role": "user", "content": question}]
        before = tokenizer.apply_chat_template(asked, add_generation_prompt=True)
    except TemplateFailure:
        before = tokenizer.encode(f"{question}\n")
    if not before:
        raise Missing("the chat template writes nothing before an answer")
    return Continuation.of(before, tokenizer.encode(answer, add_special_tokens=False))
