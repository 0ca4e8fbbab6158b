"""Which tokens are trained on, and whether they can teach the answer.

What it finds. Rows and batches without anything to learn, answers cut off by the sequence limit,
answers whose end token is missing, or that are little more than an end token, prompts that are
not how their row begins, doubled beginning tokens, and answers that a mask leaves out.

Why it matters. The model learns the supervised tokens and nothing else. A batch without any
divides zero by zero, and one such step makes the whole adapter NaN. A model that never sees
its end token never stops; one that sees little else says nothing.

How it is measured. The rows are tokenized with the base model's tokenizer and chat template, cut,
masked and put into batches by the rules of mlx-lm 0.32.2, and the targets are counted. Large
files are examined in whole batches at even distances; the count examined is stated.

When it is wrong. A trainer other than mlx-lm may mask, cut or group rows in another way; the
check `trained-tokens` compares with the counts in the log. Documents longer than the limit are
usual in plain text, where being cut is at most a warning.

What to do. Look at the report's label strip. Raise `max_seq_length` above the longest row,
remove rows with empty answers, and use a template that ends answers with the model's end token.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.exhibits import LabelStrip
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.judge.remedy import rounded_up
from mlxdoctor.measure.exhibited import labels_shown
from mlxdoctor.safety.quoting import quoted

_LONGER = "raise max_seq_length above these rows, or shorten them"


@dataclass(frozen=True)
class Limits:
    """When a share of rows or targets is worth reporting."""

    certain: float = limit(
        0.95, unit="probability", source="that the run meets a batch without targets"
    )
    cut_warning: float = limit(0.02, unit="share of rows", source="a few long rows do no harm")
    cut_error: float = limit(0.5, unit="share of rows", source="most answers have no end")
    end_warning: float = limit(0.5, unit="share of rows", source="half of the answers never end")
    end_error: float = limit(0.95, unit="share of rows", source="(almost) no answer ends")
    flood_warning: float = limit(
        0.6,
        unit="share of answer tokens",
        source="one-word answers, as in classification, have 0.5",
    )
    flood_error: float = limit(
        0.9, unit="share of answer tokens", source="most answers are empty; see geography-empty"
    )
    pad_note: float = limit(0.01, unit="share of targets", source="below, it hardly matters")


@check(
    codes={
        "no-supervised-tokens": Symptom.warning(
            "rows have no supervised token after masking and cutting",
            expected="every row has an answer within the sequence limit",
            fix=_LONGER,
        ),
        "empty-batch": Symptom.error(
            "a whole batch has no supervised token, so that its loss is 0/0",
            expected="at least one supervised token in every batch",
            fix=_LONGER,
        ),
        "answers-truncated": Symptom.warning(
            "answers are cut off by the sequence limit", expected="rows shorter than max_seq_length"
        ),
        "few-answers-truncated": Symptom.info(
            "a few answers are cut off by the sequence limit",
            expected="rows shorter than max_seq_length; a few longer ones do no harm",
        ),
        "end-token-missing": Symptom.warning(
            "answers do not end with a token that stops generation",
            expected="the end token is the last thing an answer teaches",
            fix="end every answer with the end token, in the template or in the row",
        ),
        "end-token-dominates": Symptom.warning(
            "answers are little more than their end token",
            expected="answers of more than an end token",
            fix="remove the rows with empty answers",
        ),
        "offset-not-a-prefix": Symptom.warning(
            "the masked prompt is not how the row begins",
            expected="the template writes a prompt alike with and without its answer",
            fix="use a template that does not rewrite earlier messages, or train without "
            "mask_prompt",
        ),
        "double-bos": Symptom.warning(
            "rows begin with two beginning-of-text tokens",
            expected="one beginning-of-text token",
            fix="leave the beginning-of-text token out of the rows",
        ),
        "earlier-answers-masked": Symptom.info(
            "only the last answer of a conversation is trained on",
            expected="one row an answer, where each is to be learned",
            fix="split conversations so that each answer is the last of a row",
        ),
        "prompt-supervised": Symptom.info(
            "the loss covers the prompts, as mlx-lm does unless told otherwise",
            expected="what you intend: either is sound",
            fix="set mask_prompt: true to train on the answers only",
        ),
        "pad-target": Symptom.info(
            "mlx-lm trains on one padding token after each row",
            expected="a mask that ends with the row",
            fix="nothing in the run is at fault: up to 0.32.2 mlx-lm does this to every run",
        ),
    },
    limits=Limits(),
)
def label_mask(
    rows: SupervisedRows,
    config: TrainingConfig | None,
    tokenizer: Tokenizer | None,
    log: TrainingLog | None,
    limits: Limits,
) -> Iterator[Sign | LabelStrip]:
    """Report what is wrong with the supervised tokens of the training rows."""
    yield from labels_shown(rows, tokenizer)
    if not rows.rows:
        raise Inconclusive("none of the rows examined could be tokenized")
    yield from _empty_batches(rows, config, log, limits)
    bare = [row for row in rows.rows if len(row.targets) == 0]
    if bare:
        prompts = max(row.prompt_length for row in bare)
        yield Sign(
            "no-supervised-tokens",
            f"{len(bare)} of {len(rows.rows)} rows have no supervised token: the longest "
            f"of their prompts has {prompts} tokens, and rows are cut after {rows.max_seq_length}.",
            {
                "rows": len(bare),
                "examined": len(rows.rows),
                "longest_prompt": prompts,
                "max_seq_length": rows.max_seq_length,
                **_examples(bare),
                **_needed(rows, bare),
            },
            where=_place(rows, bare),
            severity=Severity.ERROR if len(bare) == len(rows.rows) else None,
            fix=_longer(rows, bare),
        )
    yield from _cut(rows, limits)
    if rows.eos_token_ids:
        yield from _ends(rows, tokenizer, limits)
        yield from _flood(rows, limits)
    yield from _wrongly_begun(rows, tokenizer)
    yield from _notes(rows, limits)


def _empty_batches(
    rows: SupervisedRows, config: TrainingConfig | None, log: TrainingLog | None, limits: Limits
) -> Iterator[Sign]:
    empty = rows.empty_batches
    if not empty:
        return
    total = max(len(rows.batches), rows.total_rows // rows.batch_size)
    affected = round(len(empty) * total / len(rows.batches))
    iters = (config and config.iters) or total
    chance = _chance_of_meeting(total, max(affected, 1), iters)
    # A trainer that guards the division survives such a batch, and its log shows it.
    severe = chance >= limits.certain and not _loss_stayed_finite(log)
    affected_rows = [rows.rows[at] for batch in empty for at in batch]
    yield Sign(
        "empty-batch",
        f"{len(empty)} of {len(rows.batches)} batches of {rows.batch_size} have no "
        "supervised token, so their loss is 0/0, which makes every weight NaN.",
        {
            "empty_batches": len(empty),
            "batches": len(rows.batches),
            "probability_of_meeting_one": chance,
            **_needed(rows, affected_rows),
        },
        where=_place(rows, [rows.rows[empty[0][0]]]),
        severity=None if severe else Severity.WARNING,
        fix=_longer(rows, affected_rows),
    )


def _chance_of_meeting(total: int, marked: int, drawn: int) -> float:
    """Probability that `drawn` of `total` batches, without replacement, hold a marked one."""
    if drawn > total - marked:
        return 1.0
    steps = (math.log1p(-marked / (total - at)) for at in range(drawn))
    return -math.expm1(sum(steps))


def _loss_stayed_finite(log: TrainingLog | None) -> bool:
    loss = log.main.get("train_loss") if log is not None else None
    return loss is not None and len(loss.values) > 0 and bool(np.isfinite(loss.values).all())


def _cut(rows: SupervisedRows, limits: Limits) -> Iterator[Sign]:
    cut, share = _share(rows.rows, lambda row: row.answer_is_cut)
    if not cut:
        return
    is_error = share >= limits.cut_error and rows.format != "text"
    longest = max(row.full_length for row in cut)
    yield Sign(
        "answers-truncated" if share >= limits.cut_warning else "few-answers-truncated",
        f"{len(cut)} of {len(rows.rows)} answers are cut off: their rows have up to "
        f"{longest} tokens, and max_seq_length is {rows.max_seq_length}.",
        {
            "share": share,
            "longest_row": longest,
            "max_seq_length": rows.max_seq_length,
            **_examples(cut),
            **_needed(rows, cut),
        },
        where=_place(rows, cut),
        severity=Severity.ERROR if is_error else None,
        fix=_longer(rows, cut),
    )


def _longest(rows: SupervisedRows, affected: Sequence[SupervisedRow]) -> int | None:
    """The tokens of the longest row that is cut; None where none is."""
    lengths = [row.full_length for row in affected if row.full_length > rows.max_seq_length]
    return max(lengths, default=None)


def _needed(rows: SupervisedRows, affected: Sequence[SupervisedRow]) -> dict[str, Measurement]:
    """The limit that these rows need, for the change that is proposed."""
    longest = _longest(rows, affected)
    return {"needed_max_seq_length": longest} if longest is not None else {}


def _longer(rows: SupervisedRows, affected: Sequence[SupervisedRow]) -> str:
    """What to do about rows without a target: where the limit does not cut them, they are empty."""
    longest = _longest(rows, affected)
    if longest is None:
        return "remove the rows without an answer, or fill them in"
    return (
        f"set max_seq_length to {rounded_up(longest)}, or shorten these rows (the answer is at the "
        "end, and is what is cut first)"
    )


def _ends(rows: SupervisedRows, tokenizer: Tokenizer | None, limits: Limits) -> Iterator[Sign]:
    whole = [row for row in rows.rows if row.length == row.full_length and len(row.targets)]
    endless, share = _share(whole, lambda row: Role.END not in row.target_roles)
    if not endless or share < limits.end_warning:
        return
    last = endless[0].targets[-1]
    ends = [tokenizer.token(one) if tokenizer else str(one) for one in rows.eos_token_ids]
    shown = f" The last supervised token is {quoted(tokenizer.token(last))}." if tokenizer else ""
    yield Sign(
        "end-token-missing",
        f"{len(endless)} of {len(whole)} answers do not end with a token that stops "
        f"generation ({', '.join(ends)}).{shown}",
        {"share": share, "last_token": int(last), "end_tokens": rows.eos_token_ids},
        where=_place(rows, endless),
        severity=Severity.ERROR if share >= limits.end_error else None,
    )


def _flood(rows: SupervisedRows, limits: Limits) -> Iterator[Sign]:
    if rows.format in ("text", "tokens"):
        return
    roles = np.concatenate([row.roles[row.prompt_length : row.length] for row in rows.rows])
    ends = int((roles == Role.END).sum())
    total = ends + int((roles == Role.ANSWER).sum())
    if not total or ends / total < limits.flood_warning:
        return
    empty, _ = _share(rows.rows, lambda row: Role.ANSWER not in row.roles[row.prompt_length :])
    yield Sign(
        "end-token-dominates",
        f"{ends / total:.0%} of the answers' tokens are end tokens, and {len(empty)} of "
        f"{len(rows.rows)} answers are empty: the model learns to end at once.",
        {"share": ends / total, "empty_answers": len(empty), "rows": len(rows.rows)},
        where=_place(rows, empty),
        severity=Severity.ERROR if ends / total >= limits.flood_error else None,
    )


def _wrongly_begun(rows: SupervisedRows, tokenizer: Tokenizer | None) -> Iterator[Sign]:
    broken, share = _share(rows.rows, lambda row: row.offset > 0 and not row.prefix_matches)
    if broken:
        yield Sign(
            "offset-not-a-prefix",
            f"In {len(broken)} of {len(rows.rows)} rows the masked prompt is not how the "
            "row begins: the mask ends at the wrong token.",
            {"share": share, **_examples(broken)},
            where=_place(rows, broken),
        )
    bos = tokenizer.bos_token_id if tokenizer is not None else None
    doubled, share = _share(
        rows.rows, lambda row: bos is not None and row.tokens[:2].tolist() == [bos, bos]
    )
    if doubled:
        yield Sign(
            "double-bos",
            f"{len(doubled)} of {len(rows.rows)} rows begin with two beginning-of-text "
            "tokens: the row has one, and the tokenizer adds another.",
            {"share": share, "bos_token": bos, **_examples(doubled)},
            where=_place(rows, doubled),
        )


def _notes(rows: SupervisedRows, limits: Limits) -> Iterator[Sign]:
    turns, share = _share(rows.rows, lambda row: row.offset > 0 and row.assistant_turns > 1)
    if turns:
        yield Sign(
            "earlier-answers-masked",
            f"{len(turns)} of {len(rows.rows)} conversations have several answers, and "
            "mlx-lm's mask_prompt trains only on the last one.",
            {"share": share, **_examples(turns)},
            where=_place(rows, turns),
        )
    targets = sum(len(row.targets) for row in rows.rows)
    prompt = sum(int((row.target_roles == Role.PROMPT).sum()) for row in rows.rows)
    if prompt and not rows.mask_prompt:
        share = prompt / targets
        yield Sign(
            "prompt-supervised",
            f"{share:.0%} of the supervised tokens belong to prompts, because "
            "mask_prompt is off" + (" by default." if rows.masking_is_default else "."),
            {"share": share, "mask_prompt": False},
        )
    padded = sum(row.count() - len(row.targets) for row in rows.rows)
    if padded and (share := padded / (targets + padded)) >= limits.pad_note:
        yield Sign(
            "pad-target",
            f"mlx-lm also trains on one padding token (id {rows.pad_id}) after each row, "
            f"{share:.0%} of the targets here.",
            {"share": share, "pad_id": rows.pad_id},
        )


def _share(
    rows: Sequence[SupervisedRow], holds: Callable[[SupervisedRow], bool]
) -> tuple[list[SupervisedRow], float]:
    found = [row for row in rows if holds(row)]
    return found, len(found) / len(rows) if rows else 0.0


def _examples(rows: Sequence[SupervisedRow]) -> dict[str, Measurement]:
    return {"first_rows": tuple(row.index + 1 for row in rows[:5])}


def _place(rows: SupervisedRows, found: Sequence[SupervisedRow]) -> str | None:
    return f"row {found[0].index + 1} of {rows.split}" if found else None
