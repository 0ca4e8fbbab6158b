"""Whether the rows can teach what they are meant to.

What it finds. Rows that repeat each other, validation rows that are training rows, prompts with
answers that contradict each other, prompts with several answers, one answer for everything, too
few rows, and text damaged by a wrong encoding.

Why it matters. Copies are passes over the same rows that no setting shows: they are learned by
heart, and a validation set that was trained on says that they were learned well. Of two answers
that exclude each other one is taught wrong.

How it is measured. Rows are compared exactly: the same messages, or the same prompt and
completion, or the same text. Short answers to the same prompt contradict each other if they share
little of what is rare in them and are numbers, or answer other prompts as well; all but the most
frequent one are counted. Damage is counted as replacement characters and as the letter pairs that
UTF-8 read as Latin-1 leaves behind.

When it is wrong. Long answers, more than ten to a prompt, and wrong answers that no other prompt
has are taken for variety. An error is reported in five cases only. Copies: more than half of the
rows, if training went over the different ones many times; rows repeated to weigh more, in a run
of few passes, get a warning. Contradictions: a quarter of the rows, if the answers are numbers or
labels; rows that each hold one of several true labels are called so too. Damage: a fifth of the
answers, each with one character in a hundred damaged; damaged prompts alone get a warning. Few
rows: if they were gone over often and the validation loss rose, or stopped to fall far above the
training loss. Fewer rows than a batch: if no training began.

What to do. Remove duplicates before splitting, and split by prompt. Decide between answers that
exclude each other, or put them into one.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mlxdoctor.check import check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, Split
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.evidence.prompt_answer import Pair, pair_of
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.losses.memorising import FEW_ROWS, Memorising, MemorisingLimits, memorising
from mlxdoctor.measure.losses.trend import fit
from mlxdoctor.measure.text.repeated_prompts import ContradictionLimits, contradictions
from mlxdoctor.safety.quoting import quoted

_DAMAGE = re.compile("\ufffd|Ã©|Ã¨|Ã¼|Ã¶|Ã¤|Ã±|â€™|â€œ|â€“|ï»¿")
_CALIBRATION = "0 of 92 sound runs of three base models"
_ROWS = "distinct rows with one answer each"
_PUBLIC = f"{_CALIBRATION}, 0 of 379 sound public data sets"


@dataclass(frozen=True)
class Limits(ContradictionLimits):
    """When a share of rows is worth reporting."""

    repeated_note: float = limit(0.05, unit="share of rows", source="a few repeats do no harm")
    repeated: float = limit(
        0.5,
        unit="share of rows; exceeded for an error",
        source="every row twice is a second pass",
        false_alarms=_PUBLIC,
    )
    repeated_passes: float = limit(
        8.0,
        unit="passes over the different rows",
        source="9 runs on copies: 10 passes and more, each worse than on different rows",
        false_alarms=_CALIBRATION + ", which make 5 passes at most",
    )
    leaked: float = limit(
        0.1, unit="share of validation rows", source="above, validation measures memory"
    )
    several_note: float = limit(0.05, unit="share of rows", source="a few are paraphrases")
    contradicted: float = limit(
        0.25,
        unit="share of rows that a more frequent answer to their prompt contradicts",
        source="9 runs with contradictory rows: 0.38 and more; two annotators who disagree on "
        "every third row stay at 0.17",
        false_alarms=_PUBLIC,
    )
    contradicting_prompts: int = limit(
        10, unit="prompts", source="a coin thrown is one prompt with two answers"
    )
    one_answer: float = limit(
        0.95, unit="share of rows", source="(almost) nothing but one answer is learned"
    )
    few_rows: int = limit(
        FEW_ROWS,
        unit="rows",
        source="LoRA guides start at 50 to 100 rows; fixtures with 12 overfit",
    )
    few_passes: float = limit(
        20.0,
        unit="passes over few rows",
        source="9 runs on 6 to 24 rows make 50 and more",
        false_alarms=_CALIBRATION,
    )
    damaged: float = limit(0.01, unit="share of rows", source="above, it is no single typo")
    damaged_badly: float = limit(
        0.2,
        unit="share of rows with a badly damaged answer",
        source="6 runs with 0.3 and 1.0 of them: the answers are damaged too",
        false_alarms=_PUBLIC,
    )
    damage: float = limit(
        0.01,
        unit="damaged places to a character",
        source="German text in a wrong encoding has 0.015, French 0.03",
    )


@check(
    codes={
        "fewer-than-a-batch": Symptom.error("the training split has fewer rows than a batch"),
        "few-rows": Symptom.warning(
            "the training split is very small", fix="add rows, or train for a few passes only"
        ),
        "few-rows-again-and-again": Symptom.error(
            "the training split is very small, and the run would go over it dozens of times",
            fix="add rows, or train for a few passes only",
        ),
        "duplicates": Symptom.info(
            "training rows repeat each other", expected=_ROWS, fix="keep each row once"
        ),
        "mostly-copies": Symptom.error(
            "most rows are copies, and training went over them many times",
            expected=_ROWS,
            fix="keep each row once",
        ),
        "leaked-validation": Symptom.warning(
            "validation rows are among the training rows",
            expected=_ROWS,
            fix="remove them from valid.jsonl, and split by prompt",
        ),
        "contradictory-answers": Symptom.info(
            "short answers to the same prompt contradict each other",
            expected=_ROWS,
            fix="keep one answer a prompt, unless variety is intended",
            in_a_plan=Severity.ERROR,
        ),
        "several-answers": Symptom.info(
            "the same prompt is answered in several ways",
            expected=_ROWS,
            fix="keep one answer a prompt, unless variety is intended",
        ),
        "one-answer": Symptom.warning(
            "almost every row has the same answer",
            expected=_ROWS,
            fix="check that the answers were written to the right column",
        ),
        "damaged-text": Symptom.warning(
            "text was read in a wrong encoding",
            expected=_ROWS,
            fix="read the original as UTF-8 and write the rows again",
        ),
        "damaged-answers": Symptom.error(
            "many answers are damaged all over by a wrong encoding",
            expected=_ROWS,
            fix="read the original as UTF-8 and write the rows again",
        ),
    },
    limits=Limits(),
)
def data_quality(
    dataset: Dataset,
    *,
    config: TrainingConfig | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Compare the rows with each other."""
    train = dataset.splits.get("train")
    if train is None or not train.rows:
        return
    for sign in _number_of_rows(train, config, log, limits):
        passes = sign.measured.get("passes")
        again = isinstance(passes, float) and passes >= limits.few_passes
        # Of a run that was made the losses tell whether that many passes were too many.
        yield replace(sign, symptom="few-rows-again-and-again") if planned and again else sign
    pairs = [pair_of(row, train.format, dataset.features) for row in train.rows]
    first: dict[Pair, int] = {}
    repeats = [at for at, pair in enumerate(pairs) if first.setdefault(pair, at) != at]
    yield from _duplicates(train, repeats, _passes(config, log, len(first)), limits)
    valid = dataset.splits.get("valid")
    if valid is not None and valid.rows:
        theirs = [pair_of(row, valid.format, dataset.features) for row in valid.rows]
        leaked = [at for at, pair in enumerate(theirs) if pair in first]
        if leaked:
            yield _sign(
                "leaked-validation",
                f"{len(leaked)} of {len(theirs)} validation rows are also training rows: the "
                "validation loss measures memory.",
                valid,
                leaked,
                None if len(leaked) / len(theirs) >= limits.leaked else Severity.INFO,
            )
    if train.format != "text":
        yield from _contradictions(train, pairs, limits)
        yield from _one_answer(train, pairs, limits)
    yield from _damage(train, pairs, limits)


def _number_of_rows(
    split: Split, config: TrainingConfig | None, log: TrainingLog | None, limits: Limits
) -> Iterator[Sign]:
    count = len(split.rows)
    batch_size = config.batch_size if config is not None else None
    if batch_size is not None and count < batch_size:
        started = log is not None and log.main.get("train_loss") is not None
        yield Sign(
            "fewer-than-a-batch",
            f"The training split has {count} rows, fewer than a batch of {batch_size}: "
            "mlx-lm does not start.",
            {"rows": count, "batch_size": batch_size},
            where=split.path.name,
            severity=Severity.WARNING if started else None,
            expected=f"at least {batch_size} rows",
            fix=f"add rows, or set batch_size to {count} or less",
        )
    elif count < limits.few_rows:
        passes = _passes(config, log, count)
        times = f", seen {passes:.0f} times each" if passes >= 1 else ""
        learned = _learned_by_heart(log) if passes >= limits.few_passes else None
        unit = log.main.unit if log is not None else "iteration"
        proof = (
            f"they were learned by heart: the validation loss was lowest at {unit} "
            f"{learned.minimum_at} ({learned.minimum:.3f}) and ends at {learned.final:.3f}, far "
            f"above the training loss"
            if learned is not None
            else "so few are soon learned by heart"
        )
        yield Sign(
            "few-rows",
            f"The training split has only {count} rows{times}: {proof}.",
            {
                "rows": count,
                "passes": round(passes, 1),
                "validation_minimum": learned.minimum if learned is not None else None,
                "validation_end": learned.final if learned is not None else None,
            },
            where=split.path.name,
            severity=Severity.ERROR if learned is not None else None,
            expected=f"at least {limits.few_rows} rows",
        )


def _passes(config: TrainingConfig | None, log: TrainingLog | None, rows: int) -> float:
    """How often training went over so many rows; 0 where that is unknown."""
    if config is None:
        return 0.0
    iterations = config.iters or 0
    losses = log.main.get("train_loss") if log is not None else None
    if log is not None and losses is not None and log.main.axis in ("iteration", "step"):
        iterations = int(losses.iterations[-1])
    return iterations * (config.batch_size or 0) / rows


def _learned_by_heart(log: TrainingLog | None) -> Memorising | None:
    """The losses, if validation stopped to improve or rose while training went on."""
    losses = log.main.get("train_loss") if log is not None else None
    curve = fit(losses.iterations, losses.values) if losses is not None else None
    if log is None or curve is None or log.is_preference:
        return None
    limits = MemorisingLimits()
    found = memorising(log.main, curve, limits)
    if found is None or found.last - curve.end < limits.gap_nats:
        return None
    return found if found.risen or (found.stale and (found.is_wide or found.is_far)) else None


def _duplicates(
    split: Split, repeats: Sequence[int], passes: float, limits: Limits
) -> Iterator[Sign]:
    share = len(repeats) / len(split.rows)
    if share < limits.repeated_note:
        return
    different = len(split.rows) - len(repeats)
    harmful = share > limits.repeated and passes >= limits.repeated_passes
    over = f", and training went over these {passes:.0f} times" if passes >= 2 else ""
    yield _sign(
        "mostly-copies" if harmful else "duplicates",
        f"{len(repeats)} of {len(split.rows)} training rows repeat an earlier row: {different} are "
        f"different{over}.",
        split,
        repeats,
        Severity.WARNING if share >= limits.repeated and not harmful else None,
        different=different,
        passes=round(passes, 1),
    )


def _contradictions(split: Split, pairs: Sequence[Pair], limits: Limits) -> Iterator[Sign]:
    found = contradictions(pairs, limits)
    outvoted, exclusive, varied = (
        len(rows) / len(pairs) for rows in (found.outvoted, found.exclusive, found.varied)
    )
    if outvoted >= limits.several_note:
        severity = Severity.WARNING if outvoted >= limits.contradicted else None
        if exclusive >= limits.contradicted and found.prompts >= limits.contradicting_prompts:
            severity = Severity.ERROR
        yield _sign(
            "contradictory-answers",
            f"{len(found.outvoted)} of {len(pairs)} training rows contradict another row: it "
            "answers the same prompt differently.",
            split,
            found.outvoted,
            severity,
            exclusive=len(found.exclusive),
            prompts=found.prompts,
        )
    if varied >= limits.several_note:
        yield _sign(
            "several-answers",
            f"{len(found.varied)} of {len(pairs)} training rows have a prompt that is answered in "
            "other words elsewhere.",
            split,
            found.varied,
        )


def _one_answer(split: Split, pairs: Sequence[Pair], limits: Limits) -> Iterator[Sign]:
    answer, count = Counter(pair.answer for pair in pairs).most_common(1)[0]
    prompts = len({pair.prompt for pair in pairs})
    if count / len(pairs) >= limits.one_answer and prompts > 1:
        shown = quoted(answer, 40) if answer else "an empty one"
        yield _sign(
            "one-answer",
            f"{count} of {len(pairs)} training rows have the same answer, {shown}.",
            split,
            [at for at, pair in enumerate(pairs) if pair.answer == answer],
        )


def _damage(split: Split, pairs: Sequence[Pair], limits: Limits) -> Iterator[Sign]:
    damaged = [at for at, pair in enumerate(pairs) if _DAMAGE.search(pair.text)]
    if len(damaged) / len(pairs) < limits.damaged:
        return
    answers = [pairs[at].answer for at in damaged]
    badly = sum(len(_DAMAGE.findall(one)) >= limits.damage * len(one) > 0 for one in answers)
    yield _sign(
        "damaged-answers" if badly / len(pairs) >= limits.damaged_badly else "damaged-text",
        f"{len(damaged)} of {len(pairs)} rows have characters that a wrong encoding leaves"
        + (f", {badly} of them all over the answer." if badly else "."),
        split,
        damaged,
        badly_damaged_answers=badly,
    )


def _sign(
    symptom: str,
    message: str,
    split: Split,
    rows: Sequence[int],
    severity: Severity | None = None,
    **measured: Measurement,
) -> Sign:
    lines = tuple(split.line_numbers[at] for at in rows[:5])
    share = len(rows) / len(split.rows)
    return Sign(
        symptom,
        message,
        {"rows": len(rows), "share": share, **measured, "first_lines": lines},
        where=f"{split.path.name}, line {lines[0]}",
        severity=severity,
    )
