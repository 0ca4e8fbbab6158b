"""Whether the rows can teach what they are meant to.

What it finds. Rows that repeat each other, validation rows that are training rows, prompts with
several answers, one answer for everything, too few rows, and text damaged by a wrong encoding.

Why it matters. Duplicates are learned by heart, and a validation set that was trained on says
that they were learned well. A prompt with contradictory answers teaches neither.

How it is measured. Rows are compared exactly: the same messages, or the same prompt and
completion, or the same text. Damage is counted as replacement characters and as the letter pairs
that UTF-8 read as Latin-1 leaves behind.

When it is wrong. Several answers to a prompt are meant in some data sets (paraphrases, sampling),
and one answer to everything in some classifiers. None of these findings is an error, too few
rows for a batch aside.

What to do. Remove duplicates before splitting, and split by prompt.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, Split
from mlxdoctor.evidence.pairs import Pair, pair_of
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Measurement, Severity

_DAMAGE = ("\ufffd", "Ã©", "Ã¨", "Ã¼", "Ã¶", "Ã¤", "Ã±", "â€™", "â€œ", "â€“", "ï»¿")


@dataclass(frozen=True)
class Limits:
    """When a share of rows is worth reporting."""

    repeated_note: float = limit(0.05, unit="share of rows", source="a few repeats do no harm")
    repeated_warning: float = limit(0.5, unit="share of rows", source="most rows are repeats")
    leaked: float = limit(
        0.1, unit="share of validation rows", source="above, validation measures memory"
    )
    several_note: float = limit(0.05, unit="share of rows", source="a few are paraphrases")
    several_warning: float = limit(
        0.5, unit="share of rows", source="most prompts have another answer elsewhere"
    )
    one_answer: float = limit(
        0.95, unit="share of rows", source="(almost) nothing but one answer is learned"
    )
    few_rows: int = limit(
        50, unit="rows", source="LoRA guides start at 50 to 100 rows; fixtures with 12 overfit"
    )
    damaged: float = limit(0.01, unit="share of rows", source="above, it is no single typo")


@check(
    codes={
        "fewer-than-a-batch": "the training split has fewer rows than a batch",
        "few-rows": "the training split is very small",
        "duplicates": "training rows repeat each other",
        "leaked-validation": "validation rows are among the training rows",
        "contradictory-answers": "the same prompt has different answers",
        "one-answer": "almost every row has the same answer",
        "damaged-text": "text was read in a wrong encoding",
    },
    limits=Limits(),
)
def data_quality(
    dataset: Dataset, config: TrainingConfig | None, log: TrainingLog | None, limits: Limits
) -> Iterator[Finding]:
    """Compare the rows with each other."""
    train = dataset.splits.get("train")
    if train is None or not train.rows:
        return
    yield from _number_of_rows(train, config, log, limits)
    pairs = [pair_of(row, train.format, dataset.features) for row in train.rows]
    yield from _duplicates(train, pairs, limits)
    valid = dataset.splits.get("valid")
    if valid is not None and valid.rows:
        theirs = [pair_of(row, valid.format, dataset.features) for row in valid.rows]
        leaked = [at for at, pair in enumerate(theirs) if pair in set(pairs)]
        if leaked:
            share = len(leaked) / len(theirs)
            yield _finding(
                "leaked-validation",
                Severity.WARNING if share >= limits.leaked else Severity.INFO,
                f"{len(leaked)} of {len(theirs)} validation rows are also training rows: the "
                f"validation loss measures memory.",
                valid,
                leaked,
                share=share,
                fix="remove them from valid.jsonl, and split by prompt",
            )
    if train.format != "text":
        yield from _answers(train, pairs, limits)
    damaged = [at for at, pair in enumerate(pairs) if any(one in pair.text for one in _DAMAGE)]
    if len(damaged) / len(pairs) >= limits.damaged:
        yield _finding(
            "damaged-text",
            Severity.WARNING,
            f"{len(damaged)} of {len(pairs)} rows have characters that a wrong encoding leaves.",
            train,
            damaged,
            share=len(damaged) / len(pairs),
            fix="read the original as UTF-8 and write the rows again",
        )


def _number_of_rows(
    split: Split, config: TrainingConfig | None, log: TrainingLog | None, limits: Limits
) -> Iterator[Finding]:
    count = len(split.rows)
    batch_size = config.batch_size if config is not None else None
    if batch_size is not None and count < batch_size:
        started = log is not None and log.main.get("train_loss") is not None
        yield Finding(
            code="data-quality.fewer-than-a-batch",
            severity=Severity.WARNING if started else Severity.ERROR,
            message=f"The training split has {count} rows, fewer than a batch of {batch_size}: "
            f"mlx-lm does not start.",
            measured={"rows": count, "batch_size": batch_size},
            expected=f"at least {batch_size} rows",
            where=split.path.name,
            fix=f"add rows, or set batch_size to {count} or less",
        )
    elif count < limits.few_rows:
        seen = (config.iters or 0) * (batch_size or 0) / count if config is not None else 0.0
        times = f", seen {seen:.0f} times each" if seen >= 1 else ""
        yield Finding(
            code="data-quality.few-rows",
            severity=Severity.WARNING,
            message=f"The training split has only {count} rows{times}: they will be learned by "
            f"heart.",
            measured={"rows": count, "passes": round(seen, 1)},
            expected=f"at least {limits.few_rows} rows",
            where=split.path.name,
            fix="add rows, or train for a few passes only",
        )


def _duplicates(split: Split, pairs: list[Pair], limits: Limits) -> Iterator[Finding]:
    seen: set[Pair] = set()
    repeats = []
    for at, pair in enumerate(pairs):
        if pair in seen:
            repeats.append(at)
        seen.add(pair)
    share = len(repeats) / len(pairs)
    if share >= limits.repeated_note:
        yield _finding(
            "duplicates",
            Severity.WARNING if share >= limits.repeated_warning else Severity.INFO,
            f"{len(repeats)} of {len(pairs)} training rows repeat an earlier row.",
            split,
            repeats,
            share=share,
            fix="keep each row once",
        )


def _answers(split: Split, pairs: list[Pair], limits: Limits) -> Iterator[Finding]:
    answers_of: dict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        answers_of[pair.prompt].add(pair.answer)
    several = [at for at, pair in enumerate(pairs) if len(answers_of[pair.prompt]) > 1]
    share = len(several) / len(pairs)
    if share >= limits.several_note:
        yield _finding(
            "contradictory-answers",
            Severity.WARNING if share >= limits.several_warning else Severity.INFO,
            f"{len(several)} of {len(pairs)} training rows have a prompt that is answered "
            f"differently in another row.",
            split,
            several,
            share=share,
            fix="keep one answer a prompt, unless variety is intended",
        )
    answer, count = Counter(pair.answer for pair in pairs).most_common(1)[0]
    distinct_prompts = len(answers_of)
    if count / len(pairs) >= limits.one_answer and distinct_prompts > 1 and len(pairs) > 1:
        shown = answer[:40] or "(empty)"
        yield _finding(
            "one-answer",
            Severity.WARNING,
            f"{count} of {len(pairs)} training rows have the same answer, {shown!r}.",
            split,
            [at for at, pair in enumerate(pairs) if pair.answer == answer],
            share=count / len(pairs),
            fix="check that the answers were written to the right column",
        )


def _finding(
    symptom: str,
    severity: Severity,
    message: str,
    split: Split,
    rows: list[int],
    *,
    share: float,
    fix: str,
) -> Finding:
    lines: tuple[int | float | str, ...] = tuple(split.line_numbers[at] for at in rows[:5])
    measured: dict[str, Measurement] = {"rows": len(rows), "share": share, "first_lines": lines}
    return Finding(
        code=f"data-quality.{symptom}",
        severity=severity,
        message=message,
        measured=measured,
        expected="distinct rows with one answer each",
        where=f"{split.path.name}, line {lines[0]}",
        fix=fix,
    )
