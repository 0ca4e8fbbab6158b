"""A cause that lies in the training rows: rerun without those that the findings name.

causes.toml says of which finding which rows are left out (`leave_out`). As many rows left out
at random are the placebo. Where the symptom stays nothing is refuted: other rows than those
that are named may be at fault.
"""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxdoctor.causes import Cause
from mlxdoctor.evidence.dataset import Dataset, Features, Split
from mlxdoctor.evidence.prompt_answer import Pair, pair_of
from mlxdoctor.experiments import counterfactual
from mlxdoctor.experiments.shared.bench import Bench
from mlxdoctor.experiments.shared.copies import write_rows
from mlxdoctor.experiments.shared.observation import Condition
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, judge_change, undecided
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.faults import Fault
from mlxdoctor.train.faults.fault import Apply
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings


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
    return _left_out(settings, parts, severity, at_random=False)


def random_rows_left_out(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Leave out as many training rows, whichever they are."""
    return _left_out(settings, parts, severity, at_random=True)


def _left_out(
    settings: Settings, parts: Parts, named: Collection[str], *, at_random: bool
) -> tuple[Settings, Parts]:
    source, folder = Path(settings.data), Path(settings.adapter_path) / "data"
    dataset = Dataset.read(source)
    train = dataset.splits["train"]
    gone = named_rows(train, dataset.features, named)
    count = len(train.rows)
    if count - len(gone) < settings.batch_size:
        raise InputError(
            train.path,
            f"has {count - len(gone)} rows left without those that the findings name, fewer than "
            "a batch",
        )
    if at_random:
        gone = frozenset(random.Random(settings.seed).sample(range(count), len(gone)))
    shutil.copytree(source, folder, dirs_exist_ok=True)
    kept = (row for at, row in enumerate(train.rows) if at not in gone)
    write_rows(folder / train.path.name, kept)
    return replace(settings, data=str(folder)), parts


def _fault(label: str, apply: Apply) -> Fault:
    """The rows left out, as something that is done to a run; its severity names them."""
    return Fault(label, "bad-data", "Training rows are left out.", ((),), apply)


LEFT_OUT = _fault("leaving out the rows that the findings name", rows_left_out)
AT_RANDOM = _fault("placebo: as many rows left out at random", random_rows_left_out)


@counterfactual(
    of="failing",
    shows=lambda cause: bool(cause.leave_out),
    any_symptom=True,
)
def leave_out_rows(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling:
    """Rerun on the other rows."""
    found = [one.code for outcome in bench.failure.outcomes for one in outcome.findings]
    named = dict.fromkeys(cause.leave_out[code] for code in found if code in cause.leave_out)
    if not named:
        return undecided(
            "the findings name no rows that could be left out or repaired",
            "which rows are wrong, which only somebody who knows the answers can say",
        )
    # Other rows than the run's own may have errors of their own.
    asked = replace(question, strict=False)
    label = f"{LEFT_OUT.id} ({', '.join(named)})"
    condition = Condition(
        "repair", label, bench.failure.iterations, fault=LEFT_OUT, severity=tuple(named)
    )
    changed = bench.changed(condition, asked, cause.id, plain)
    ruling = judge_change(asked, plain, {}, changed, None, what=label)
    if ruling.verdict == "confirmed":
        other = replace(condition, kind="random rows", label=AT_RANDOM.id, fault=AT_RANDOM)
        return bench.against_placebo(condition, asked, plain, changed, placebo=other)
    if ruling.verdict == "refuted":
        reason = f"{ruling.reason}; other rows than those that the findings name may be at fault"
        return undecided(reason, "which rows those are")
    return ruling
