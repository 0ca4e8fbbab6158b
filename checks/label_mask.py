"""Which tokens are trained on, and whether they can teach the answer.

What it finds. Rows and batches without anything to learn, answers cut off by the sequence limit,
answers whose end token is missing, prompts that are not how their row begins, doubled beginning
tokens, and answers that a mask leaves out.

Why it matters. The model learns the supervised tokens and nothing else. A batch without any
divides zero by zero, and one such step makes the whole adapter NaN. A model that never sees
its end token never stops.

How it is measured. The rows are tokenized with the base model's tokenizer and chat template, cut,
masked and put into batches by the rules of mlx-lm 0.32.2, and the targets are counted. Large
files are examined in whole batches at even distances; the count examined is stated.

When it is wrong. A trainer other than mlx-lm may mask, cut or group rows in another way; the
check `trained-tokens` compares with the counts in the log. Documents longer than the limit are
usual in plain text, where being cut is at most a warning.

What to do. Look at the report's label strip. Raise `max_seq_length` above the longest row,
and use a template that ends answers with the model's end token.
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

_LONGER = (
    "[set max_seq_length to {set_to}, or shorten these rows (the answer is at the end, and is what "
    "is cut first)|remove the rows without an answer, or fill them in]"
)


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


@check(
    codes={
        "no-supervised-tokens": Symptom.warning(
            "rows have no supervised token after masking and cutting",
            says="{rows} of {examined} rows have no supervised token: the longest of their prompts "
            "has {longest_prompt} tokens, and rows are cut after {max_seq_length}.",
            expected="every row has an answer within the sequence limit",
            fix=_LONGER,
        ),
        "empty-batch": Symptom.error(
            "a whole batch has no supervised token, so that its loss is 0/0",
            says="{empty_batches} of {batches} batches of {batch_size} have no supervised token, "
            "so their loss is 0/0, which makes every weight NaN.",
            expected="at least one supervised token in every batch",
            fix=_LONGER,
        ),
        "answers-truncated": Symptom.warning(
            "answers are cut off by the sequence limit",
            says="{rows} of {examined} answers are cut off: their rows have up to {longest_row} "
            "tokens, and max_seq_length is {max_seq_length}.",
            expected="rows shorter than max_seq_length",
            fix=_LONGER,
        ),
        "end-token-missing": Symptom.warning(
            "answers do not end with a token that stops generation",
            says="{rows} of {examined} answers do not end with a token that stops generation "
            "({ends})[; the last supervised token is {last}].",
            expected="the end token is the last thing an answer teaches",
            fix="end every answer with the end token, in the template or in the row",
        ),
        "offset-not-a-prefix": Symptom.warning(
            "the masked prompt is not how the row begins",
            says="In {rows} of {examined} rows the masked prompt is not how the row begins: the "
            "mask ends at the wrong token.",
            expected="the template writes a prompt alike with and without its answer",
            fix="use a template that does not rewrite earlier messages, or train without "
            "mask_prompt",
        ),
        "double-bos": Symptom.warning(
            "rows begin with two beginning-of-text tokens",
            says="{rows} of {examined} rows begin with two beginning-of-text tokens: the row has "
            "one, and the tokenizer adds another.",
            expected="one beginning-of-text token",
            fix="leave the beginning-of-text token out of the rows",
        ),
        "earlier-answers-masked": Symptom.info(
            "only the last answer of a conversation is trained on",
            says="{rows} of {examined} conversations have several answers, and mlx-lm's "
            "mask_prompt trains only on the last one.",
            expected="one row an answer, where each is to be learned",
            fix="split conversations so that each answer is the last of a row",
        ),
        "prompt-supervised": Symptom.info(
            "the loss covers the prompts, as mlx-lm does unless told otherwise",
            says="{share:.0%} of the supervised tokens belong to prompts, because mask_prompt is "
            "off[ {by_default}].",
            expected="what you intend: either is sound",
            fix="set mask_prompt: true to train on the answers only",
        ),
        "pad-target": Symptom.info(
            "mlx-lm trains on one padding token after each row",
            says="mlx-lm also trains on one padding token (id {pad_id}) after each row, "
            "{share:.0%} of the targets here.",
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
    if bare := _where(rows.rows, lambda row: len(row.targets) == 0):
        yield _sign(
            "no-supervised-tokens",
            rows,
            bare,
            Severity.ERROR if len(bare) == len(rows.rows) else None,
            longest_prompt=max(row.prompt_length for row in bare),
        )
    cut = _where(rows.rows, lambda row: row.answer_is_cut)
    if cut and (share := len(cut) / len(rows.rows)) >= limits.cut_warning:
        is_error = share >= limits.cut_error and rows.format != "text"
        yield _sign(
            "answers-truncated",
            rows,
            cut,
            Severity.ERROR if is_error else None,
            longest_row=max(row.full_length for row in cut),
        )
    if rows.eos_token_ids:
        yield from _ends(rows, tokenizer, limits)
    if broken := _where(rows.rows, lambda row: row.offset > 0 and not row.prefix_matches):
        yield _sign("offset-not-a-prefix", rows, broken)
    bos = tokenizer.bos_token_id if tokenizer is not None else None
    doubled = _where(rows.rows, lambda row: bos is not None and [*row.tokens[:2]] == [bos, bos])
    if doubled:
        yield _sign("double-bos", rows, doubled, bos_token=bos)
    if turns := _where(rows.rows, lambda row: row.offset > 0 and row.assistant_turns > 1):
        yield _sign("earlier-answers-masked", rows, turns)
    yield from _beside_answers(rows)


def _empty_batches(
    rows: SupervisedRows, config: TrainingConfig | None, log: TrainingLog | None, limits: Limits
) -> Iterator[Sign]:
    empty = rows.empty_batches
    if not empty:
        return
    total = max(len(rows.batches), rows.total_rows // rows.batch_size)
    affected = max(round(len(empty) * total / len(rows.batches)), 1)
    chance = _chance_of_meeting(total, affected, (config and config.iters) or total)
    # A trainer that guards the division survives such a batch, and its log shows it.
    severe = chance >= limits.certain and not _loss_stayed_finite(log)
    yield _sign(
        "empty-batch",
        rows,
        [rows.rows[place] for batch in empty for place in batch],
        None if severe else Severity.WARNING,
        empty_batches=len(empty),
        batches=len(rows.batches),
        batch_size=rows.batch_size,
        probability_of_meeting_one=chance,
    )


def _chance_of_meeting(total: int, marked: int, drawn: int) -> float:
    """Probability that `drawn` of `total` batches, without replacement, hold a marked one."""
    if drawn > total - marked:
        return 1.0
    steps = (math.log1p(-marked / (total - before)) for before in range(drawn))
    return -math.expm1(sum(steps))


def _loss_stayed_finite(log: TrainingLog | None) -> bool:
    loss = log.main.get("train_loss") if log is not None else None
    return loss is not None and len(loss.values) > 0 and bool(np.isfinite(loss.values).all())


def _ends(rows: SupervisedRows, tokenizer: Tokenizer | None, limits: Limits) -> Iterator[Sign]:
    whole = _where(rows.rows, lambda row: row.length == row.full_length and len(row.targets) > 0)
    endless = _where(whole, lambda row: Role.END not in row.target_roles)
    if not endless or len(endless) < limits.end_warning * len(whole):
        return
    last = int(endless[0].targets[-1])
    ends = [tokenizer.token(one) if tokenizer else str(one) for one in rows.eos_token_ids]
    yield _sign(
        "end-token-missing",
        rows,
        endless,
        Severity.ERROR if len(endless) >= limits.end_error * len(whole) else None,
        examined=len(whole),
        last=quoted(tokenizer.token(last)) if tokenizer else None,
        ends=tuple(ends),
    )


def _beside_answers(rows: SupervisedRows) -> Iterator[Sign]:
    targets = sum(len(row.targets) for row in rows.rows)
    prompt = sum(int((row.target_roles == Role.PROMPT).sum()) for row in rows.rows)
    if prompt and not rows.mask_prompt:
        by_default = "by default" if rows.masking_is_default else None
        yield Sign("prompt-supervised", {"share": prompt / targets, "by_default": by_default})
    padded = sum(row.count() - len(row.targets) for row in rows.rows)
    # Below a hundredth it hardly matters.
    if padded and (share := padded / (targets + padded)) >= 0.01:
        yield Sign("pad-target", {"share": share, "pad_id": rows.pad_id})


def _where(
    rows: Sequence[SupervisedRow], holds: Callable[[SupervisedRow], bool]
) -> list[SupervisedRow]:
    return [row for row in rows if holds(row)]


def _sign(
    symptom: str,
    rows: SupervisedRows,
    affected: Sequence[SupervisedRow],
    severity: Severity | None = None,
    **measured: Measurement,
) -> Sign:
    """A sign about some of the rows: how many, the first of them, and the limit that they need."""
    figures: dict[str, Measurement] = {
        "rows": len(affected),
        "examined": len(rows.rows),
        "share": len(affected) / len(rows.rows),
        "max_seq_length": rows.max_seq_length,
    }
    # Rows that the limit does not cut have no answer.
    lengths = [row.full_length for row in affected if row.full_length > rows.max_seq_length]
    if lengths:
        figures |= {"needed_max_seq_length": max(lengths), "set_to": rounded_up(max(lengths))}
    where = f"row {affected[0].index + 1} of {rows.split}" if affected else None
    return Sign(symptom, figures | measured, where=where, severity=severity)
