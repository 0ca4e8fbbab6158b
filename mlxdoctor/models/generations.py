"""What the base model and the tuned model answered to the same prompts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import commonprefix
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from mlxdoctor.engines.text import CONTROL
from mlxdoctor.evidence import answer_keys
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.json_text import json_values, mended
from mlxdoctor.evidence.kind import Missing, NoSuchThing, Progress, RunView
from mlxdoctor.evidence.source import Source, read_text
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.answer import answer
from mlxdoctor.models.forward import Floats, Question, ask, told
from mlxdoctor.models.load import LoadedModels, Which, applied_twice, end_tokens, on_cpu
from mlxdoctor.models.prompts import (
    PLAIN_FORMATS,
    Prompt,
    as_in_the_data,
    in_template,
    plain_prompt,
    prompts_for,
    systems_of,
)
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import quoted
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.time_budget import TimeBudget, by_turns

#: Of the time that is left, what the answers may take.
SHARE = 0.45
#: Prompts that are asked on a processor before it is known how long they take.
FIRST_PROMPTS = 8
#: Prompts of each split, and general ones, that are asked before more of any.
OF_EACH_ORIGIN = 4
#: A token of an answer takes as long as so many of a prompt, which are read at once.
STEP_COST = 3
#: Recorded prompts that are asked again, those that are asked where the answers to these are not
#: their own, and tokens of each answer: minutes on a large model.
AGAIN, FURTHER, TOKENS_AGAIN = 12, 36, 32
#: Characters with which the same answer begins, whether it is sampled later on or not.
ALIKE = 12
#: System prompts of the rows that recorded answers are tried with, at most.
SYSTEMS = 3
#: A way of asking that is none of the prompt's.
TWICE = "with the adapter applied twice"
#: Words that all recorded answers begin with, and none of the model's own: they were put there.
FORCED = 2


@dataclass(frozen=True)
class Generation:
    """One prompt and what was answered to it.

    Attributes:
        prompt: the prompt as the user wrote it; empty where it was not recorded.
        base: the base model's answer, or None where it was not recorded.
        base_tokens: the ids of `base`, the end token included where it was chosen.
        tuned_tokens: the ids of `tuned`, likewise.
        max_tokens: the limit both were generated under, in tokens.
    """

    prompt: str
    base: str | None
    tuned: str
    base_tokens: tuple[int, ...] | None = None
    tuned_tokens: tuple[int, ...] | None = None
    max_tokens: int | None = None
    expected: str | None = None


@dataclass(frozen=True)
class Generations:
    """Answers of the base and the tuned model, prompt by prompt.

    Attributes:
        end_token_ids: the ids that end an answer; empty where they are unknown.
        how: "recorded" by the user, or "produced" here, greedily.
        load_failure: why the adapter could not be put on the base model; `items` is
            empty then.
        left_out: how many of the prompts were asked and why not all, as a clause; else empty.
    """

    kind: ClassVar[str] = "answers"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    items: tuple[Generation, ...]
    end_token_ids: tuple[int, ...] = ()
    how: Literal["recorded", "produced"] = "recorded"
    load_failure: str | None = None
    left_out: str = ""

    @classmethod
    def find(cls, run: RunView) -> "Generations":
        """Both models' own, or else recorded ones, which may have been made in another way."""
        recorded = run.files.generations
        if (produced := run.get(ProducedGenerations)) is not None:
            return produced
        if recorded is None:
            return run.need(ProducedGenerations)
        answers = cls.read(recorded)
        if answers.end_token_ids:
            return answers
        known = (run.get(BaseModel), run.get(Tokenizer))
        ends = (end for source in known if source is not None for end in source.eos_token_ids)
        return replace(answers, end_token_ids=tuple(dict.fromkeys(ends)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Recorded answers: JSON Lines, or JSON with a list of rows.

        A row is an object with the answer under `tuned` (or `response`, `output`,
        `completion`, `generated_text`, `generation`, `text`), or the answer itself.

        Raises:
            InputError: the file cannot be read, or holds no answer.
        """
        text, source = read_text(path)
        values, _ = json_values(text)
        ends: tuple[int, ...] | None = None
        if len(values) == 1 and isinstance(whole := values[0], dict):
            ends = _tokens(whole.get("end_token_ids"))
            keys = answer_keys.LIST_KEYS
            lists = (whole[key] for key in keys if isinstance(whole.get(key), list))
            values = next(lists, values)
        items = tuple(filter(None, map(_generation, values)))
        texts = [text for item in items for text in (item.prompt, item.base or "", item.tuned)]
        if not texts:
            remedy = 'write one JSON object a line, with "prompt", "tuned" and, if known, "base"'
            raise InputError(path, "holds no generated answer", remedy)
        if max(map(len, texts)) > current().answer_characters:
            raise exceeded(path, "holds a longer text", "answer_characters")
        return cls((source,), items, ends or ())

    @property
    def distinct(self) -> tuple[Generation, ...]:
        """One answer a prompt: greedy repeats of one prompt are one observation."""
        # Those whose prompt was not recorded count all.
        keys = [item.prompt or number for number, item in enumerate(self.items)]
        first = dict(zip(reversed(keys), reversed(self.items), strict=True))
        return tuple(first[key] for key in dict.fromkeys(keys))


class ProducedGenerations(Generations):
    """Both models' own answers to prompts of the run's data and to general ones."""

    #: A step to `Generations`, which lists the same files.
    kind: ClassVar[str] = ""

    @classmethod
    def find(cls, run: RunView) -> "ProducedGenerations":
        """Answered by the models here."""
        if run.files.generations is not None:
            # Where no model may be run there are others: nothing needs to be read first.
            run.need(LoadedModels)
        tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
        prompts = prompts_for(run.get(Dataset), tokenizer)
        try:
            answers = produce(models, tokenizer, prompts, progress=run.progress, budget=run.budget)
        except InputError as error:
            if run.files.generations is None:
                raise
            # Nothing is lacking where others were recorded.
            raise Missing(str(error)) from None
        return cls(**vars(answers))


@dataclass(frozen=True)
class Asked:
    """One prompt: the answers that were recorded, and both models' own, greedy ones.

    `otherwise`: a way of asking -> the tuned model's answer; empty where the recorded answers are
    those of the usual way.
    """

    recorded: Generation
    own: Generation
    otherwise: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AskedAgain:
    """Recorded answers beside both models' own answers to the same prompts.

    Attributes:
        further: the tuned model's answers to more prompts of the file; empty where the recorded
            answers are those of the usual way.
        losses: of the tokens of the recorded answers, the first ones left out, to the tuned model
            that is asked in the usual way, nats; float32 (n,).
    """

    kind: ClassVar[str] = "answers to the recorded prompts"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    items: tuple[Asked, ...]
    further: tuple[str, ...] = ()
    losses: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    @classmethod
    def find(cls, run: RunView) -> "AskedAgain":
        """The recorded answers' prompts, asked again."""
        if run.files.generations is None:
            raise NoSuchThing("no answers were recorded")
        recorded = Generations.read(run.files.generations)
        every = [item for item in recorded.distinct if item.prompt][: AGAIN + FURTHER]
        items = every[:AGAIN]
        if not items:
            raise Missing("the recorded answers are without their prompts")
        tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
        if "tuned" not in models.names:
            raise Missing("the adapter could not be loaded on this base model")
        dataset, asking_for = run.get(Dataset), [item.prompt for item in every]
        system, *others = systems_of(dataset)[:SYSTEMS] or [""]
        prompts = _as_recorded(dataset, tokenizer, asking_for, system)
        again = produce(
            models,
            tokenizer,
            prompts[:AGAIN],
            max_tokens=TOKENS_AGAIN,
            progress=run.progress,
            budget=run.budget,
        )
        own = {item.prompt: item for item in again.items}
        asked = [Asked(item, own[item.prompt]) for item in items if item.prompt in own]
        sources = (*recorded.sources, *again.sources)
        said = {each.own.prompt: each.recorded.tuned for each in asked}
        asking = prompts[:AGAIN] if run.budget.left > 0 else []
        losses = _losses(models, tokenizer, asking, said)
        if 2 * _alike(asked) >= len(asked):
            return cls(sources, tuple(asked), losses=losses)
        asker = _Asker(run, models, tokenizer)
        asked = [
            replace(
                each, recorded=replace(each.recorded, tuned=asker.until_end(each.recorded.tuned))
            )
            for each in asked
        ]
        texts = [each.own.prompt for each in asked]
        for other in others:
            mine = asker.answers(_as_recorded(dataset, tokenizer, texts, other))
            after = [
                replace(each, own=replace(each.own, tuned=text))
                for each, text in zip(asked, mine, strict=False)
            ]
            asked = max(asked, after, key=_alike)
        if 2 * _alike(asked) >= len(asked):
            return cls(sources, tuple(asked), losses=losses)
        further = asker.answers(prompts[AGAIN:])
        ways = asker.otherwise(asked, prompts[:AGAIN], has_system=bool(system))
        asked = [
            replace(each, otherwise={way: texts[row] for way, texts in ways.items() if texts})
            for row, each in enumerate(asked)
        ]
        return cls(sources, tuple(asked), tuple(further), losses)


@dataclass(frozen=True)
class _Asker:
    """The tuned model, asked in ways that are not the usual one, while there is time."""

    run: RunView
    models: LoadedModels
    tokenizer: Tokenizer

    @cached_property
    def ends(self) -> tuple[int, ...]:
        return tuple(end_tokens(self.tokenizer, self.models.base))

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

    def otherwise(
        self, asked: Sequence[Asked], prompts: Sequence[Prompt], *, has_system: bool
    ) -> dict[str, list[str]]:
        """A way of asking -> the answers; `prompts` are the same, asked in the usual way."""
        texts = [each.own.prompt for each in asked]
        ways = {
            way: self.answers(
                [Prompt(text, tuple(written(self.tokenizer, text))) for text in texts]
            )
            for way, written in _WAYS.items()
        }
        if has_system:
            plain = [plain_prompt(self.tokenizer, text) for text in texts]
            ways["without the system prompt that the rows have"] = self.answers(plain)
        beside = self.run.files.adapter if self.run.files.tuned is not None else None
        with applied_twice(self.models, beside) as is_possible:
            ways[TWICE] = self.answers(prompts) if is_possible else []
        begun = commonprefix([each.recorded.tuned for each in asked])  # noqa: RUF071 - of texts
        is_own = any(each.own.tuned.startswith(begun) for each in asked)
        if len(begun.split()) >= FORCED and not is_own:
            before = self.tokenizer.encode(begun.rstrip(), add_special_tokens=False)
            usual = {prompt.text: prompt.tokens for prompt in prompts}
            rest = self.answers([Prompt(text, (*usual[text], *before)) for text in texts])
            way = f"with {quoted(begun.strip())} put before its answers"
            ways[way] = [begun.rstrip() + text for text in rest]
        return ways


def _alike(asked: Sequence[Asked]) -> int:
    """How many recorded answers begin as the tuned model's own."""
    return sum(
        each.recorded.tuned.strip()[:ALIKE] == each.own.tuned.strip()[:ALIKE] for each in asked
    )


def _losses(
    models: LoadedModels, tokenizer: Tokenizer, prompts: Sequence[Prompt], texts: Mapping[str, str]
) -> Floats:
    """The losses of recorded answers after their prompts, the first token of each left out."""
    questions = []
    for prompt in prompts:
        text = texts.get(prompt.text, "")
        answered = tokenizer.encode(text, add_special_tokens=False)[:TOKENS_AGAIN]
        if len(answered) > 1:
            tokens = np.array([*prompt.tokens, *answered], np.int32)
            # How an answer begins depends on a blank, which is not always recorded.
            questions.append(Question(tokens[:-1], tokens[-len(answered) + 1 :, None]))
    parts = [each.losses[:, 0] for each in ask(models, "tuned", questions)]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


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


def _as_recorded(
    dataset: Dataset | None, tokenizer: Tokenizer, texts: Sequence[str], system: str
) -> list[Prompt]:
    """Prompts as they were most likely asked when the answers were recorded."""
    # Written with the template's own signs, a prompt has been through it.
    return [
        Prompt(prompt.text, tuple(tokenizer.encode(prompt.text)))
        if CONTROL.search(prompt.text)
        else prompt
        for prompt in as_in_the_data(dataset, tokenizer, texts, system)
    ]


def produce(
    models: LoadedModels,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 48,
    progress: Progress | None = None,
    budget: TimeBudget | None = None,
) -> Generations:
    """Both models' greedy answers, of as many of the prompts as the budget allows.

    Where the adapter could not be loaded, no answer is generated, and the reason is in
    `load_failure`. Without an adapter, the base model's answers stand for both.

    Raises:
        InputError: there is no prompt, or the model cannot generate.
        Missing: the budget was spent before.
    """
    if not prompts:
        raise InputError(None, "there is no prompt to generate from", "name the data with --data")
    ends = end_tokens(tokenizer, models.base)
    if models.load_failure is not None:
        return Generations(models.sources, (), ends, "produced", models.load_failure)
    budget = budget or TimeBudget()
    order = _order(prompts)
    costs = [float(len(prompts[i].tokens) + STEP_COST * max_tokens) for i in order]
    items: dict[int, Generation] = {}

    def answers(which: Which, asked: Sequence[Prompt]) -> list[tuple[int, ...]]:
        tell = told(progress, f"generating with the {which} model", len(items), len(prompts))
        with models.running():
            return answer(models.select(which), asked, ends, max_tokens, tell)

    for stage in budget.stages(costs, SHARE, FIRST_PROMPTS if on_cpu() else len(order), 4):
        places = [order[turn] for turn in stage]
        asked = [prompts[i] for i in places]
        base = answers("base", asked)
        tuned = answers("tuned", asked) if "tuned" in models.names else base
        for i, prompt, before, after in zip(places, asked, base, tuned, strict=True):
            items[i] = Generation(
                prompt=prompt.text,
                base=tokenizer.decode(before),
                tuned=tokenizer.decode(after),
                base_tokens=before,
                tuned_tokens=after,
                max_tokens=max_tokens,
                expected=prompt.expected,
            )
    if not items:
        raise Missing(budget.spent)
    in_order = tuple(items[i] for i in sorted(items))
    left_out = budget.said(len(items), len(prompts), "prompts were asked")
    return Generations(models.sources, in_order, ends, "produced", left_out=left_out)


def _order(prompts: Sequence[Prompt]) -> list[int]:
    """Some prompts of each origin before more of any."""
    sizes = Counter(prompt.origin for prompt in prompts)
    origins = list(sizes)
    grouped = sorted(range(len(prompts)), key=lambda i: origins.index(prompts[i].origin))
    return [grouped[i] for i in by_turns(list(sizes.values()), OF_EACH_ORIGIN)]


def _generation(row: Any) -> Generation | None:
    if isinstance(row, str):
        return Generation("", None, mended(row))
    if not isinstance(row, dict):
        return None
    tuned = _text(row, answer_keys.TUNED_KEYS)
    if tuned is None:
        return None
    limit = row.get("max_tokens")
    return Generation(
        prompt=_text(row, answer_keys.PROMPT_KEYS) or _last_user_message(row.get("messages")),
        base=_text(row, answer_keys.BASE_KEYS),
        tuned=tuned,
        base_tokens=_tokens(row.get("base_tokens")),
        tuned_tokens=_tokens(row.get("tuned_tokens")),
        max_tokens=limit if isinstance(limit, int) and limit > 0 else None,
        expected=_text(row, answer_keys.EXPECTED_KEYS),
    )


def _text(row: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((mended(row[key]) for key in keys if isinstance(row.get(key), str)), None)


def _tokens(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(value) if all(type(token) is int for token in value) else None


def _last_user_message(messages: Any) -> str:
    turns = messages if isinstance(messages, list) else []
    users = (turn for turn in turns if isinstance(turn, dict) and turn.get("role") == "user")
    asked = [turn["content"] for turn in users if isinstance(turn.get("content"), str)]
    return mended(asked[-1]) if asked else ""
