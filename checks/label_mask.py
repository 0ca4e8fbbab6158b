"""Which tokens are trained on, and whether they can teach the answer.

What it finds. Rows and batches without anything to learn, answers cut off by the sequence limit,
answers without an end token, rows that do not begin with their masked prompt, doubled beginning
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

What to do. Look at the rows with `mlxdoctor labels`. Raise `max_seq_length` above the longest row,
and use a template that ends answers with the model's end token.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.judge.remedy import rounded_up
from mlxdoctor.safety.quoting import quoted

_FIX_LENGTH = (
    "[set max_seq_length to {set_to}, or shorten these rows (the answer is at the end, and is what "
    "is cut first)|remove the rows without an answer, or fill them in]"
)
#: Least share of the rows for a sign, and for an error. The share of `end-token-missing` is of the
#: answers that are not cut. A few long rows do no harm.
_SHARES = {
    "no-supervised-tokens": (0.0, 1.0),
    "answers-truncated": (0.02, 0.5),
    "end-token-missing": (0.5, 0.95),
}
#: Least probability of meeting a batch without targets for an error.
_CERTAIN = 0.95
#: Share of the targets below which mlx-lm's padding targets hardly matter.
_PADDED = 0.01


@check(
    codes={
        "no-supervised-tokens": Symptom.warning(
            "rows have no supervised token after masking and cutting",
            says="{rows} of {examined} rows have no supervised token: the longest of their prompts "
            "has {longest_prompt} tokens, and rows are cut after {max_seq_length}.",
            expected="every row has an answer within the sequence limit",
            fix=_FIX_LENGTH,
        ),
        "empty-batch": Symptom.error(
            "a whole batch has no supervised token, so that its loss is 0/0",
            says="{empty_batches} of {batches} batches of {batch_size} have no supervised token, "
            "so their loss is 0/0, which makes every weight NaN.",
            expected="at least one supervised token in every batch",
            fix=_FIX_LENGTH,
        ),
        "answers-truncated": Symptom.warning(
            "answers are cut off by the sequence limit",
            says="{rows} of {examined} answers are cut off: their rows have up to {longest_row} "
            "tokens, and max_seq_length is {max_seq_length}.",
            expected="rows shorter than max_seq_length",
            fix=_FIX_LENGTH,
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
            fix="set mask_prompt: true, unless the model should learn the prompts too",
        ),
        "pad-target": Symptom.info(
            "mlx-lm trains on one padding token after each row",
            says="mlx-lm also trains on one padding token (id {pad_id}) after each row, "
            "{share:.0%} of the targets here.",
            expected="a mask that ends with the row",
            fix="nothing to do: mlx-lm does this in every run, up to version 0.32.2",
        ),
    },
)
def label_mask(
    rows: SupervisedRows,
    config: TrainingConfig | None,
    tokenizer: Tokenizer | None,
    log: TrainingLog | None,
) -> Iterator[Sign]:
    if not rows.rows:
        raise Inconclusive("none of the rows examined could be tokenized")
    if rows.empty_batches:
        yield _empty_batches(rows, config, log)
    has_questions = any(row.prompt_length for row in rows.rows)
    affected: dict[str, list[SupervisedRow]] = defaultdict(list)
    for row in rows.rows:
        for problem in row.problems:
            affected[problem].append(row)
    for symptom, with_problem in affected.items():
        least, least_error = _SHARES.get(symptom, (0.0, math.inf))
        figures: dict[str, Measurement] = {}
        examined = len(rows.rows)
        if symptom == "end-token-missing":
            examined = sum(row.length == len(row.tokens) and row.count() > 0 for row in rows.rows)
            name = tokenizer.token if tokenizer else str
            last = quoted(name(int(with_problem[0].targets[-1]))) if tokenizer else None
            figures = {"last": last, "ends": tuple(map(name, rows.eos_token_ids))}
        # Documents of plain text are often longer than the limit.
        if symptom == "answers-truncated" and rows.format == "text" and not has_questions:
            least_error = math.inf
        if (share := len(with_problem) / examined) >= least:
            severity = Severity.ERROR if share >= least_error else None
            yield _sign(symptom, rows, with_problem, severity, examined=examined, **figures)
    targets = sum(len(row.targets) for row in rows.rows)
    prompt = sum(int((row.target_roles == Role.PROMPT).sum()) for row in rows.rows)
    # Of plain text mlx-lm can't mask anything.
    if prompt and not rows.mask_prompt and rows.format != "text":
        by_default = "by default" if rows.masking_is_default else None
        yield Sign("prompt-supervised", {"share": prompt / targets, "by_default": by_default})
    padded = sum(row.count() - len(row.targets) for row in rows.rows)
    if padded >= max(1, _PADDED * (targets + padded)):
        yield Sign("pad-target", {"share": padded / (targets + padded), "pad_id": rows.pad_id})


def _empty_batches(
    rows: SupervisedRows, config: TrainingConfig | None, log: TrainingLog | None
) -> Sign:
    empty = rows.empty_batches
    # The batches examined stand for all batches of the run.
    total = max(len(rows.batches), rows.total_rows // rows.batch_size)
    total_empty = max(round(len(empty) * total / len(rows.batches)), 1)
    drawn = (config and config.iters) or total
    chance = 1.0
    if drawn <= total - total_empty:
        # Batches are drawn without replacement: the n-th is one of the `total - n` that remain.
        chance = -math.expm1(sum(math.log1p(-total_empty / (total - n)) for n in range(drawn)))
    # A trainer that guards the division survives such a batch, and its log shows it.
    losses = log.main.get("train_loss") if log is not None else None
    stayed_finite = losses is not None and len(losses) > 0 and np.isfinite(losses.values).all()
    severity = None if chance >= _CERTAIN and not stayed_finite else Severity.WARNING
    affected = [rows.rows[place] for batch in empty for place in batch]
    counts = {"empty_batches": len(empty), "batches": len(rows.batches)}
    more = {"batch_size": rows.batch_size, "probability_of_meeting_one": chance}
    return _sign("empty-batch", rows, affected, severity, **counts, **more)


def _sign(
    symptom: str,
    rows: SupervisedRows,
    affected: Sequence[SupervisedRow],
    severity: Severity | None = None,
    **measured: Measurement,
) -> Sign:
    """A sign about some of the rows, with their number and the limit that they need."""
    longest = max(len(row.tokens) for row in affected)
    figures: dict[str, Measurement] = {
        "rows": len(affected),
        "examined": len(rows.rows),
        "share": len(affected) / len(rows.rows),
        "max_seq_length": rows.max_seq_length,
        "longest_prompt": max(row.prompt_length for row in affected),
        "longest_row": longest,
    }
    # If the limit cuts no row, a higher limit does not help.
    if longest > rows.max_seq_length:
        figures |= {"needed_max_seq_length": longest, "set_to": rounded_up(longest)}
    where = f"row {affected[0].index + 1} of {rows.split}"
    return Sign(symptom, figures | measured, where=where, severity=severity)
