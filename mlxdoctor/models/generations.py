"""What the base model and the tuned model answered to the same prompts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.json_text import json_values, mended
from mlxdoctor.evidence.kind import Missing, NoSuchThing, Progress, RunView
from mlxdoctor.evidence.run_files import (
    BASE_KEYS,
    EXPECTED_KEYS,
    LIST_KEYS,
    PROMPT_KEYS,
    SYSTEM_KEYS,
    TUNED_KEYS,
)
from mlxdoctor.evidence.source import Source, read_text
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.forward import answer, told
from mlxdoctor.models.load import LoadedModels, Which, end_tokens, on_cpu
from mlxdoctor.models.prompts import Prompt, prompts_for
from mlxdoctor.safety.errors import InputError
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


@dataclass(frozen=True)
class Generation:
    """One prompt and what was answered to it; empty or None what was not recorded.

    Attributes:
        prompt: as the user wrote it.
        base_tokens, tuned_tokens: ids, the end token included where it was chosen.
        max_tokens: the limit both were generated under.
        expected: the answer that was hoped for.
        turns: the conversation that was asked with, where it has several; `prompt` joins them.
    """

    prompt: str
    base: str | None
    tuned: str
    base_tokens: tuple[int, ...] | None = None
    tuned_tokens: tuple[int, ...] | None = None
    max_tokens: int | None = None
    expected: str | None = None
    system: str | None = None
    turns: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Generations:
    """Answers of the base and the tuned model, prompt by prompt.

    Attributes:
        end_token_ids: the ids that end an answer; empty where they are unknown.
        how: "recorded" by the user, or "produced" here, greedily.
        load_failure: why the adapter could not be put on the base model, so that there are none.
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
        try:
            if recorded is not None:
                # Where no model may be run there are others: nothing needs to be read first.
                run.need(LoadedModels)
            tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
            prompts = prompts_for(run.get(Dataset), tokenizer)
            return produce(models, tokenizer, prompts, progress=run.progress, budget=run.budget)
        except (Missing, InputError):
            if recorded is None:
                raise
        answers = cls.read(recorded)
        if answers.end_token_ids:
            return answers
        return replace(answers, end_token_ids=end_tokens(run.get(Tokenizer), run.get(BaseModel)))

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
            lists = (whole[key] for key in LIST_KEYS if isinstance(whole.get(key), list))
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


class RecordedGenerations(Generations):
    """What the user recorded, for what needs no model."""

    kind: ClassVar[str] = "recorded answers"
    needs_models: ClassVar[bool] = False

    @classmethod
    def find(cls, run: RunView) -> "RecordedGenerations":
        """The recorded answers, if there are any."""
        if run.files.generations is None:
            raise NoSuchThing("no answers were recorded")
        return cls.read(run.files.generations)


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
        # Without an adapter, the base model's answers stand for both.
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
    tuned = _text(row, TUNED_KEYS)
    if tuned is None:
        return None
    limit = row.get("max_tokens")
    system, asked = _conversation(row)
    return Generation(
        prompt=_text(row, PROMPT_KEYS) or "\n".join(turn["content"] for turn in asked),
        base=_text(row, BASE_KEYS),
        tuned=tuned,
        base_tokens=_tokens(row.get("base_tokens")),
        tuned_tokens=_tokens(row.get("tuned_tokens")),
        max_tokens=limit if isinstance(limit, int) and limit > 0 else None,
        expected=_text(row, EXPECTED_KEYS),
        system=_text(row, SYSTEM_KEYS) or system,
        turns=asked if len(asked) > 1 else (),
    )


_TURN = ("role", "content")


def _text(row: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((mended(row[key]) for key in keys if isinstance(row.get(key), str)), None)


def _tokens(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(value) if all(type(token) is int for token in value) else None


def _conversation(row: Mapping[str, Any]) -> tuple[str | None, tuple[dict[str, str], ...]]:
    """The system prompt, and the turns up to the last of a user; none where there are no turns."""
    lists = (row[key] for key in (*PROMPT_KEYS, "messages") if isinstance(row.get(key), list))
    turns = [
        {"role": turn["role"], "content": mended(turn["content"])}
        for turn in next(lists, [])
        if isinstance(turn, dict) and all(isinstance(turn.get(key), str) for key in _TURN)
    ]
    while turns and turns[-1]["role"] != "user":
        turns.pop()
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else None
    return system, tuple(turns)
