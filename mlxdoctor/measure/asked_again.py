"""The prompts whose answers the run's owner recorded, asked again of both models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.kind import Missing, NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.measure.generate import Prompt, plain_prompt
from mlxdoctor.measure.generations import Generations, produce
from mlxdoctor.measure.models import LoadedModels

#: Prompts that are asked again, and tokens of each answer: minutes on a large model.
PROMPTS, TOKENS = 12, 32


@dataclass(frozen=True)
class Asked:
    """One prompt: the answer that was recorded, and both models' own, greedy, of 32 tokens."""

    prompt: str
    recorded: str
    base: str
    tuned: str


@dataclass(frozen=True)
class AskedAgain:
    """Recorded answers beside both models' own answers to the same prompts.

    Attributes:
        sources: the recorded file and the models' files.
        items: one a prompt, in the order of the file.
    """

    kind: ClassVar[str] = "answers to the recorded prompts"

    sources: tuple[Source, ...]
    items: tuple[Asked, ...]

    @classmethod
    def find(cls, run: RunView) -> AskedAgain:
        """The recorded answers' prompts, asked again; see `Evidence`."""
        if run.files.generations is None:
            raise NotThere("no answers were recorded")
        recorded = Generations.read(run.files.generations)
        known = [one for one in recorded.distinct if one.prompt][:PROMPTS]
        if not known:
            raise Missing("the recorded answers are without their prompts")
        tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
        if not models.has_tuned:
            raise Missing("the adapter could not be loaded on this base model")
        prompts: list[Prompt] = [plain_prompt(tokenizer, one.prompt) for one in known]
        again = produce(
            models,
            tokenizer,
            prompts,
            max_tokens=TOKENS,
            progress=run.progress,
            budget=run.budget,
        )
        answered = {one.prompt: one for one in again.items}
        items = tuple(
            Asked(before.prompt, before.tuned, one.base or "", one.tuned)
            for before in known
            if (one := answered.get(before.prompt)) is not None
        )
        return cls((*recorded.sources, *again.sources), items)
