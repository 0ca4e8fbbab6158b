"""The prompts whose answers the run's owner recorded, asked again of both models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.measure.text.outputs import SPECIAL_TEXT
from mlxdoctor.models.answer import Prompt, as_in_the_data, plain_prompt
from mlxdoctor.models.generations import Generations, produce
from mlxdoctor.models.load import LoadedModels

#: Prompts that are asked again, and tokens of each answer: minutes on a large model.
PROMPTS, TOKENS = 12, 32


@dataclass(frozen=True)
class Asked:
    """One prompt: the answers that were recorded, and both models' own.

    Attributes:
        prompt: the prompt as it was recorded.
        recorded: the tuned model's answer, as its owner recorded it.
        base: the base model's own, greedy, of 32 tokens.
        tuned: the tuned model's own, likewise.
        recorded_base: the base model's answer, where it was recorded too.
        expected: the answer that was hoped for, where that was recorded.
    """

    prompt: str
    recorded: str
    base: str
    tuned: str
    recorded_base: str | None = None
    expected: str | None = None


class RecordedGenerations(Generations):
    """The answers that the run's owner recorded, whatever models answer here."""

    #: `Generations` or `AskedAgain` lists the file.
    kind: ClassVar[str] = ""
    needs_models: ClassVar[bool] = True

    @classmethod
    def find(cls, run: RunView) -> RecordedGenerations:
        """The recorded file; see `Evidence`."""
        if run.files.generations is None:
            raise NotThere("no answers were recorded")
        found = Generations.read(run.files.generations)
        return cls(**{one.name: getattr(found, one.name) for one in fields(found)})


@dataclass(frozen=True)
class AskedAgain:
    """Recorded answers beside both models' own answers to the same prompts.

    Attributes:
        sources: the recorded file and the models' files.
        items: one a prompt, in the order of the file.
    """

    kind: ClassVar[str] = "answers to the recorded prompts"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    items: tuple[Asked, ...]

    @classmethod
    def find(cls, run: RunView) -> AskedAgain:
        """The recorded answers' prompts, asked again; see `Evidence`."""
        recorded = run.need(RecordedGenerations)
        known = [one for one in recorded.distinct if one.prompt][:PROMPTS]
        if not known:
            raise Missing("the recorded answers are without their prompts")
        tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
        if not models.has_tuned:
            raise Missing("the adapter could not be loaded on this base model")
        again = produce(
            models,
            tokenizer,
            _as_recorded(run.get(Dataset), tokenizer, [one.prompt for one in known]),
            max_tokens=TOKENS,
            progress=run.progress,
            budget=run.budget,
        )
        answered = {one.prompt: one for one in again.items}
        items = tuple(
            Asked(
                before.prompt,
                before.tuned,
                one.base or "",
                one.tuned,
                before.base,
                before.expected,
            )
            for before in known
            if (one := answered.get(before.prompt)) is not None
        )
        return cls((*recorded.sources, *again.sources), items)


def _as_recorded(
    dataset: Dataset | None, tokenizer: Tokenizer, texts: Sequence[str]
) -> list[Prompt]:
    """Prompts as they were most likely asked when the answers were recorded."""
    prompts = (
        [plain_prompt(tokenizer, text) for text in texts]
        if dataset is None
        else as_in_the_data(dataset, tokenizer, texts)
    )
    # Written with the template's own signs, a prompt has been through it.
    return [
        Prompt(one.text, tuple(tokenizer.encode(one.text)))
        if SPECIAL_TEXT.search(one.text)
        else one
        for one in prompts
    ]
