"""Repairs of the training rows, each in a copy: what would cure a cause that lies in them."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from mlxdoctor.evidence.dataset import Dataset, Features, Row, Split
from mlxdoctor.evidence.prompt_answer import Pair, pair_of
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.faults import Fault
from mlxdoctor.train.faults.of_settings import with_settings
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings

#: Tokens of an answer that the base model is asked for, where the data has none.
ANSWER_TOKENS = 48
#: Rows with an empty answer that get one.
ANSWERED_ROWS = 64


@dataclass(frozen=True)
class Repair:
    """A repair of the data, and what it says of a cause where it does not cure.

    Attributes:
        repair: writes the repaired rows; its severity says which.
        placebo: leaves out as many rows at random; None: another order is the placebo.
        failed: the verdict where the symptom stays.
        named: finding -> the name of what it finds, for the severity; only what was found
            is repaired. None: the severity is the fault's own.
    """

    repair: Fault
    failed: Literal["refuted", "undecided"]
    placebo: Fault | None = None
    named: Mapping[str, str] | None = None


def answers_filled(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Give rows with an empty answer the base model's own; those beyond the count are left out."""
    from mlx_lm import generate

    model, tokenizer = parts.load(settings)
    folder = Path(settings.adapter_path) / "data"
    shutil.copytree(settings.data, folder, dirs_exist_ok=True)
    for path in folder.glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        for row in rows[: int(severity)]:
            messages = row.get("messages")
            if not messages or str(messages[-1].get("content") or "").strip():
                continue
            prompt = tokenizer.apply_chat_template(
                messages[:-1], add_generation_prompt=True, return_dict=False
            )
            answer = generate(model, tokenizer, prompt, max_tokens=ANSWER_TOKENS)
            messages[-1] = {**messages[-1], "content": answer.strip()}
        _write(path, [row for row in rows if _has_answer(row)])
    return with_settings(settings, parts, data=str(folder))


def _has_answer(row: Mapping[str, Any]) -> bool:
    messages = row.get("messages") or [{}]
    return bool(str(messages[-1].get("content") or "").strip())


def named_rows(split: Split, features: Features, what: Collection[str]) -> frozenset[int]:
    """The rows of a split, by their place, that a finding of one of these names is about.

    Of rows that repeat each other the first is not among them; of rows that contradict each
    other all are: nobody knows which is right.
    """
    pairs = [pair_of(row, split.format, features) for row in split.rows]
    answers: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        answers[pair.prompt].add(pair.answer)
    seen: set[Pair] = set()
    found: set[int] = set()
    for place, (row, pair) in enumerate(zip(split.rows, pairs, strict=True)):
        problems = {
            "duplicates": pair in seen,
            "contradictory": len(answers[pair.prompt]) > 1,
            "damaged": is_damaged(pair.text),
            "empty": not pair.answer.strip(),
            "other format": features.format_of(row) != split.format,
        }
        if any(problems[one] for one in what):
            found.add(place)
        seen.add(pair)
    return frozenset(found)


def is_damaged(text: str) -> bool:
    """Whether a text was read in a wrong encoding: characters were lost, or it is twice UTF-8."""
    if "\ufffd" in text:
        return True
    if text.isascii():
        return False
    try:
        return text.encode("cp1252").decode("utf-8") != text
    except (UnicodeEncodeError, UnicodeDecodeError):
        return False


def rows_left_out(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Leave out the training rows that findings name."""
    return _left_out(settings, parts, severity, lambda named, _: named)


def random_rows_left_out(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Leave out as many training rows, whichever they are."""

    def chosen(named: frozenset[int], count: int) -> frozenset[int]:
        return frozenset(random.Random(settings.seed).sample(range(count), len(named)))

    return _left_out(settings, parts, severity, chosen)


def _left_out(
    settings: Settings,
    parts: Parts,
    severity: Any,
    choose: Callable[[frozenset[int], int], frozenset[int]],
) -> tuple[Settings, Parts]:
    source, folder = Path(settings.data), Path(settings.adapter_path) / "data"
    dataset = Dataset.read(source)
    train = dataset.splits["train"]
    named = named_rows(train, dataset.features, severity)
    kept = len(train.rows) - len(named)
    if kept < settings.batch_size:
        raise InputError(
            train.path,
            f"has {kept} rows left without those that the findings name, fewer than a batch",
        )
    gone = choose(named, len(train.rows))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    _write(folder / train.path.name, [row for at, row in enumerate(train.rows) if at not in gone])
    return with_settings(settings, parts, data=str(folder))


def _write(path: Path, rows: Sequence[Row]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, "utf-8")


#: Cause -> the repair of the data that would cure it.
REPAIRS: Mapping[str, Repair] = MappingProxyType(
    {
        "end-token-flood": Repair(
            Fault(
                "filling empty answers with the base model's own",
                "end-token-flood",
                "Rows with an empty answer get the base model's own answer.",
                (ANSWERED_ROWS,),
                answers_filled,
            ),
            failed="refuted",
        ),
        "bad-data": Repair(
            Fault(
                "leaving out the rows that the findings name",
                "bad-data",
                "Rows that repeat or contradict each other, are damaged or empty are left out.",
                ((),),
                rows_left_out,
            ),
            # Others than those that are named may be at fault.
            failed="undecided",
            placebo=Fault(
                "placebo: as many rows left out at random",
                "bad-data",
                "As many rows are left out, whichever they are.",
                ((),),
                random_rows_left_out,
            ),
            named=MappingProxyType(
                {
                    "data-quality.duplicates": "duplicates",
                    "data-quality.contradictory-answers": "contradictory",
                    "data-quality.damaged-text": "damaged",
                    "data-format.empty-answers": "empty",
                    "data-format.mixed-formats": "other format",
                }
            ),
        ),
    }
)
