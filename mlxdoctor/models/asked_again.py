"""The recorded prompts, asked again: in the usual way, and as they are asked by mistake."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.forward import answer
from mlxdoctor.models.generations import Generation, RecordedGenerations, produce
from mlxdoctor.models.load import LoadedModels, end_tokens
from mlxdoctor.models.prompts import (
    PLAIN_FORMATS,
    Prompt,
    as_in_the_data,
    in_template,
    plain_prompt,
    system_of,
)

#: Recorded prompts that are asked again, those that are asked where the answers to these are not
#: their own, and tokens of each answer: minutes on a large model.
AGAIN, FURTHER, TOKENS_AGAIN = 12, 36, 32
#: Characters with which the same answer begins, whether it is sampled later on or not.
ALIKE = 12
#: Share of the answers that a way of asking gives, where no other is tried.
MOST = 0.75


@dataclass(frozen=True)
class Asked:
    """One prompt: recorded answers, both models' own, and the tuned model's by way of asking."""

    recorded: Generation
    own: Generation
    otherwise: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AskedAgain:
    """Recorded answers beside both models' own answers to the same prompts.

    Attributes:
        further: the tuned model's answers to more prompts of the file; empty where the recorded
            answers are those of the usual way.
    """

    kind: ClassVar[str] = "answers to the recorded prompts"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    items: tuple[Asked, ...]
    further: tuple[str, ...] = ()

    @classmethod
    def find(cls, run: RunView) -> "AskedAgain":
        """The recorded answers' prompts, asked again."""
        recorded = run.need(RecordedGenerations)
        every = [item for item in recorded.distinct if item.prompt][: AGAIN + FURTHER]
        items = every[:AGAIN]
        if not items:
            raise Missing("the recorded answers are without their prompts")
        tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
        if "tuned" not in models.names:
            raise Missing("the adapter could not be loaded on this base model")
        dataset = run.get(Dataset)
        system = system_of(dataset)
        usual = as_in_the_data(dataset, tokenizer, [item.prompt for item in every], system)
        prompts = [
            plain_prompt(tokenizer, item.prompt, item.system or "", item.turns)
            if item.system or item.turns
            else prompt
            for item, prompt in zip(every, usual, strict=True)
        ]
        again = produce(
            models,
            tokenizer,
            prompts[:AGAIN],
            max_tokens=TOKENS_AGAIN,
            progress=run.progress,
            budget=run.budget,
        )
        asker = _Asker(run, models, tokenizer)

        def plain(each: Generation) -> Generation:
            return replace(each, tuned=asker.until_end(each.tuned))

        own = {item.prompt: item for item in again.items}
        asked = [
            Asked(plain(item), plain(own[item.prompt])) for item in items if item.prompt in own
        ]
        sources = (*recorded.sources, *again.sources)
        if 2 * _alike(asked) > len(asked):
            return cls(sources, tuple(asked))
        further = asker.answers(prompts[AGAIN:])
        ways = asker.otherwise(asked, has_system=bool(system))
        asked = [
            replace(each, otherwise={way: texts[row] for way, texts in ways.items() if texts[row:]})
            for row, each in enumerate(asked)
        ]
        return cls(sources, tuple(asked), tuple(further))


@dataclass(frozen=True)
class _Asker:
    """The tuned model, asked in ways that are not the usual one, while there is time."""

    run: RunView
    models: LoadedModels
    tokenizer: Tokenizer

    @cached_property
    def ends(self) -> tuple[int, ...]:
        return end_tokens(self.tokenizer, self.models.base)

    def until_end(self, text: str) -> str:
        """An answer without its end token, which some record with it."""
        marks = filter(None, (self.tokenizer.decode([end]) for end in self.ends))
        return min((text.partition(mark)[0] for mark in marks), key=len, default=text)

    def answers(self, prompts: Sequence[Prompt]) -> list[str]:
        """An answer for each; none where the time is over."""
        if not prompts or self.run.budget.left <= 0:
            return []
        with self.models.running():
            answers = answer(self.models.select("tuned"), prompts, self.ends, TOKENS_AGAIN)
        return [self.until_end(self.tokenizer.decode(tokens)) for tokens in answers]

    def otherwise(self, asked: Sequence[Asked], *, has_system: bool) -> dict[str, list[str]]:
        """Ways of asking -> the answers, up to the first that gives most of the recorded ones."""
        texts = [each.own.prompt for each in asked]
        mistaken = {
            way: [Prompt(text, tuple(written(self.tokenizer, text))) for text in texts]
            for way, written in _WAYS.items()
        }
        if has_system:
            plain = [plain_prompt(self.tokenizer, text) for text in texts]
            mistaken["without the system prompt that the rows have"] = plain
        ways = {}
        for way, asking in mistaken.items():
            ways[way] = self.answers(asking)
            if _alike(asked, ways[way]) >= MOST * len(asked):
                return ways
        return ways


def _alike(asked: Sequence[Asked], answers: Sequence[str] | None = None) -> int:
    """How many recorded answers begin as these, or as the tuned model's own."""
    own = [each.own.tuned for each in asked] if answers is None else answers
    pairs = zip((each.recorded.tuned for each in asked), own, strict=False)
    return sum(first.strip()[:ALIKE] == second.strip()[:ALIKE] for first, second in pairs)


def _in_format(pattern: str) -> Callable[[Tokenizer, str], Sequence[int]]:
    before = pattern.split("{answer}", maxsplit=1)[0].rstrip(" ")
    return lambda tokenizer, text: tokenizer.encode(before.replace("{prompt}", text))


#: Ways in which prompts are asked by mistake: what they are called -> a prompt's tokens.
_WAYS: Mapping[str, Callable[[Tokenizer, str], Sequence[int]]] = {
    "without the chat template": lambda tokenizer, text: tokenizer.encode(text),
    "without the generation prompt": lambda tokenizer, text: in_template(
        tokenizer, [{"role": "user", "content": text}], begin=False
    ),
    "with the chat template applied twice": lambda tokenizer, text: (
        plain_prompt(tokenizer, tokenizer.decode(plain_prompt(tokenizer, text).tokens)).tokens
    ),
    "with another system prompt": lambda tokenizer, text: in_template(
        tokenizer,
        [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": text},
        ],
    ),
    **{
        f"as `{pattern.partition('{answer}')[0]}`".replace("\n", "\\n"): _in_format(pattern)
        for pattern in PLAIN_FORMATS[3:]
    },
}
