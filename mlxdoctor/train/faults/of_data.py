"""Faults of the data: written to a copy, which the settings then name."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mlxdoctor.train.faults.fault import Fault, beside, fault, summary_of
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings

JsonRow = dict[str, Any]
#: (rows, severity, random numbers) -> rows.
Rewrite = Callable[[list[JsonRow], Any, random.Random], list[JsonRow]]


def rewrites(id: str, cause: str, *severities: Any) -> Callable[[Rewrite], Fault]:
    """Makes a fault of a function that changes the training rows; its docstring is the summary."""

    def made(change: Rewrite) -> Fault:
        def apply(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
            return rewritten(settings, change, severity), parts

        return Fault(id, cause, summary_of(change), severities, apply)

    return made


def rewritten(settings: Settings, change: Rewrite, severity: Any) -> Settings:
    """The settings with the training rows changed, in a copy beside the run's folder."""
    folder = beside(settings, "data")
    shutil.copytree(settings.data, folder, dirs_exist_ok=True)
    path = folder / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = change(rows, severity, random.Random(settings.seed))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return replace(settings, data=str(folder))


def answer_of(row: JsonRow) -> str:
    """The text to be learned of a row of messages, or of prompt and completion."""
    return str(row["messages"][-1]["content"] if "messages" in row else row["completion"])


def with_answer(row: JsonRow, answer: str) -> JsonRow:
    """The row with another answer."""
    if "messages" not in row:
        return {**row, "completion": answer}
    *others, last = row["messages"]
    return {**row, "messages": [*others, {**last, "content": answer}]}


def with_prompt(row: JsonRow, change: Callable[[str], str]) -> JsonRow:
    """The row with its question changed."""
    if "messages" not in row:
        return {**row, "prompt": change(row["prompt"])}
    *others, question, answer = row["messages"]
    changed = {**question, "content": change(question["content"])}
    return {**row, "messages": [*others, changed, answer]}


@rewrites("answers-shuffled", "bad-data", 0.3, 0.6, 1.0)
def shuffled_answers(rows: list[JsonRow], share: Any, rng: random.Random) -> list[JsonRow]:
    """The answers of this share of the rows belong to other questions."""
    chosen = rng.sample(range(len(rows)), round(len(rows) * float(share)))
    moved = chosen[1:] + chosen[:1]
    changed = list(rows)
    for place, source in zip(chosen, moved, strict=True):
        changed[place] = with_answer(rows[place], answer_of(rows[source]))
    return changed


@rewrites("answers-contradictory", "bad-data", 0.3, 0.6, 1.0)
def contradictions(rows: list[JsonRow], share: Any, rng: random.Random) -> list[JsonRow]:
    """This share of the questions comes with three wrong answers beside the right one."""
    chosen = rng.sample(rows, round(len(rows) * float(share)))
    others = [
        with_answer(row, answer_of(rng.choice([one for one in rows if one is not row])))
        for row in chosen
        for _ in range(3)
    ]
    mixed = [*rows, *others]
    rng.shuffle(mixed)
    return mixed


@rewrites("rows-duplicated", "bad-data", 0.3, 0.1, 0.03)
def duplicates(rows: list[JsonRow], unique: Any, rng: random.Random) -> list[JsonRow]:
    """All rows are copies of this share of them."""
    kept = rng.sample(rows, max(round(len(rows) * float(unique)), 1))
    mixed = [kept[place % len(kept)] for place in range(len(rows))]
    rng.shuffle(mixed)
    return mixed


@rewrites("answers-empty", "bad-data", 0.6, 0.9, 1.0)
def empty_answers(rows: list[JsonRow], share: Any, rng: random.Random) -> list[JsonRow]:
    """This share of the answers is empty: only the end is there to be learned."""
    return [with_answer(row, "") if rng.random() < share else row for row in rows]


@rewrites("answers-damaged", "bad-data", 0.3, 1.0)
def damaged(rows: list[JsonRow], share: Any, rng: random.Random) -> list[JsonRow]:
    """Three in ten characters are lost in the answers of this share of the rows."""

    def spoil(text: str) -> str:
        return "".join("\ufffd" if rng.random() < 0.3 else one for one in text)

    return [
        with_answer(row, spoil(answer_of(row))) if rng.random() < share else row for row in rows
    ]


@fault("rows-all-masked", "no-supervised-tokens", 0.02, 0.1, 0.5)
def long_prompts(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The prompt is masked, and this share of the prompts fills the whole limit."""
    # Batches are of one row: one without a target to learn is 0/0 in parity.
    _, tokenizer = parts.load(settings)
    longest = max(len(row.tokens) for row in parts.encode(settings, tokenizer).train)
    limit = 32 * -(-longest // 32) + 1

    def lengthen(rows: list[JsonRow], share: Any, rng: random.Random) -> list[JsonRow]:
        def page(question: str) -> str:
            text = question
            while len(tokenizer.encode(text)) <= limit:
                text = f"{answer_of(rng.choice(rows))} {text}"
            return text

        chosen = set(rng.sample(range(len(rows)), max(round(len(rows) * float(share)), 1)))
        return [
            with_prompt(row, page) if place in chosen else row for place, row in enumerate(rows)
        ]

    masked = replace(settings, max_seq_length=limit, mask_prompt=True, batch_size=1)
    return rewritten(masked, lengthen, severity), parts


@rewrites("overfitting", "overfitting", 24, 12, 6)
def few(rows: list[JsonRow], count: Any, rng: random.Random) -> list[JsonRow]:
    """This many rows are trained on, over and over."""
    return rng.sample(rows, int(count))
