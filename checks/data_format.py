"""Whether the data files are what mlx-lm can train on.

What it finds. Lines and rows that mlx-lm does not read as rows, cannot write with the chat
template, or has no answer to learn from; and a validation split that is missing or has no batch.

Why it matters. mlx-lm stops at a line it can't read and at a row it can't tokenize, sometimes in
the middle of a run. What it does read but nobody meant to train on is learned all the same.

How it is measured. Every line is parsed. The first row decides the format, as in mlx-lm, and the
others are compared with it. The rows examined are rendered with the model's chat template. Empty
answers are counted: a few are a note, more a warning, and where they are more than a third, which
is more than in data sets with unanswerable questions, the error that explains a silent model.

When it is wrong. A trainer other than mlx-lm may read more formats; rows with a chosen answer are
a note there. Rows whose answers are to be empty, because saying nothing is what is taught, are
called empty all the same. Where the log shows that the run got going, unreadable rows are warnings:
it must have skipped them, or the files have changed.

What to do. What the finding says: which keys or roles to rename to what, which model to take, or
which lines to repair or remove.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from mlxdoctor.check import check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, Message, Split
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.run_files import rows_elsewhere
from mlxdoctor.evidence.supervision import SupervisedRows, of_preferences
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.logged_levels import rows_gone_over
from mlxdoctor.measure.text.renames import how_to_rename, of_messages, roles_renamed
from mlxdoctor.measure.weights.lora_targets import by_mlx_lm
from mlxdoctor.safety.quoting import quoted

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
_ROWS = "one row a line, all in the first row's format"
_error = partial(Symptom.error, expected=_ROWS)
_warning = partial(Symptom.warning, expected=_ROWS)
_FILL_IN = "remove these rows, or fill them in"
#: Share of empty answers below which they are a note: a few gaps in a column teach nothing.
_EMPTY_NOTE = 0.02
#: Share of empty answers for an error. A third of SQuAD 2.0's questions have no answer on purpose.
#: With 0.3, models left 0 of 30 prompts unanswered, with 0.4 9 and 12 (two bases), with 0.7 all.
#: 0 of 46 sound runs of real text and 0 of 33 of a small base reach it.
_EMPTY_ERROR = 0.35
#: Times that training goes over its rows, up to which most reports are of rows not learned yet.
ONCE = 1.5
#: Empty answers for an error: fewer may be examples.
_EMPTY_ROWS = 8


@check(
    codes={
        "bad-lines": _error(
            "lines are not JSON objects",
            says="{lines:* line} of {file} cannot be read as rows: line {first_line} {reason}.",
            fix="write one JSON object a line, in UTF-8, and no blank line",
        ),
        "no-rows": _error(
            "the training file has no rows",
            says="{file} has no rows: there is nothing to train on.",
            fix="write the rows again; the file was probably not written to the end",
        ),
        "no-training-file": _error(
            "there is no train.jsonl",
            says="{folder} has no train.jsonl[; its folder {deeper} has one|; it has {others}, "
            "which mlx-lm does not read].",
            fix="[set data to {path}|write the rows to train.jsonl and valid.jsonl, one JSON "
            "object a line, in UTF-8]",
        ),
        "unknown-format": _error(
            "the rows have none of the keys that mlx-lm looks for",
            says="The first row of {file} has the keys {keys}, and mlx-lm looks for messages, "
            "prompt and completion, or text.",
            fix="[{rename}|rename the keys, or name them with prompt_feature and "
            "completion_feature]",
        ),
        "pairs": Symptom.info(
            "rows are pairs of answers",
            says="The rows of {file} have a chosen answer, which mlx_lm.lora does not read: each "
            "is examined as its prompt and the chosen answer.",
            expected="rows that the run's own trainer reads",
        ),
        "mixed-formats": _error(
            "rows are in another format than the first row",
            says="{lines} of {rows} rows of {file} lack the keys of the first row's format "
            "({format}), which mlx-lm expects of every row.",
            fix="put every row into one format",
        ),
        "rows-refused": _error(
            "rows cannot be tokenized",
            says="{lines} of {examined} rows cannot be tokenized: {reason}.",
            fix="[rename {renames}|mlx-lm stops at such a row: repair or remove it]",
        ),
        "no-template": Symptom.error(
            "the rows need a chat template, and the model has none",
            says="The rows of {file} are conversations, and the base model's tokenizer has no "
            "chat template to write them with: mlx-lm does not start.",
            expected="a model with a chat template, or rows of text",
            fix="train the model's instruct version, which has a chat template, or write the rows "
            'as {{"text": ...}} in the format that the model is to continue',
        ),
        "mask-needs-messages": Symptom.error(
            "mask_prompt is set on rows of plain text",
            says="mask_prompt is set, but the rows are plain text, where mlx-lm can't tell the "
            "prompt from the answer and refuses to start.",
            expected="rows with messages, or with a prompt and a completion",
            fix="convert the rows to messages, or leave mask_prompt out",
        ),
        "no-answer": _warning(
            "conversations do not end with an answer by the assistant",
            says="{lines} of {rows} rows do not end with an answer by the assistant: mlx-lm trains "
            "on whatever comes last.",
            fix="end every conversation with the assistant's answer",
        ),
        "unknown-roles": _warning(
            "messages have roles that chat templates do not know",
            says="{lines} of {rows} rows have messages with unusual roles ({roles}), which chat "
            "templates leave out or write as they are.",
            fix="[rename the roles {renames}|use the roles system, user, assistant and tool]",
        ),
        "empty-answers": _warning(
            "answers are empty",
            says="{lines} of {rows} rows have an empty answer[, {share:.0%} of all: after their "
            "prompts the end token is all that is to be learned].",
            fix=_FILL_IN,
        ),
        "empty-prompts": _warning(
            "prompts are empty",
            says="{lines} of {rows} rows have an empty prompt.",
            fix=_FILL_IN,
        ),
        "no-validation-split": Symptom.info(
            "there is no validation split, or it is empty",
            "a valid.jsonl with about a tenth of the rows",
            "move a tenth of the rows to valid.jsonl, and train again to see when the loss on them "
            "stops falling",
            in_a_plan=Severity.WARNING,
            says="There is no validation data[, and the log's {reports} reports are of the "
            "training loss alone: none shows|; the log's {validations} validation losses are of "
            "other rows: these can't show|: nothing would show] whether the model only "
            "learned its rows by heart.",
        ),
        "met-once": Symptom.info(
            "there is no validation split, and each row was met about once",
            "a valid.jsonl with about a tenth of the rows",
            "move a tenth of the rows to valid.jsonl before training for longer",
            says="There is no validation data. Training went over its rows {passes:.1f} times, so "
            "that the loss of most reports is of rows that were not learned yet.",
        ),
        "no-validation-batches": Symptom.warning(
            "there is no batch to validate on: the validation loss is 0/0",
            "[at least {batch_size} rows|a positive val_batches, or -1 for all]",
            "[add rows to valid.jsonl, or set batch_size to {rows}|set val_batches to -1, or "
            "remove valid.jsonl]",
            in_a_plan=Severity.ERROR,
            says="[The validation split has {rows:* row}, fewer than a batch of {batch_size}: "
            "mlx-lm stops at the first validation, or its loss is 0/0|val_batches is "
            "{val_batches}, so every validation loss is 0/0: NaN, whatever the model].",
        ),
    },
)
def data_format(
    dataset: Dataset,
    *,
    rows: SupervisedRows | None,
    config: TrainingConfig | None,
    log: TrainingLog | None,
    tokenizer: Tokenizer | None,
    planned: PlannedRun | None,
    adapter: Adapter | None,
) -> Iterator[Sign]:
    started = log is not None and log.main.get("train_loss") is not None
    # A run that started did not stop at these rows.
    severity = Severity.WARNING if started else None
    is_expected = of_preferences(config, log, dataset)
    is_own = planned is None and not by_mlx_lm(config)
    for split in dataset.splits.values():
        if split.name in ("train", "valid"):
            yield from _lines(split, severity)
        if split.name in ("train", "valid") and split.rows and not is_expected:
            # What trained on them, and is not mlx-lm, reads them in its own way.
            own = Severity.INFO if adapter is not None and is_own else severity
            yield from _of_another_trainer(split, own, is_own=is_own)
    # Beside a run that was made lie rows to test it on, and a folder may have been cleared since.
    is_needed = planned is not None or (not dataset.splits and adapter is None)
    if is_needed and dataset.path.is_dir() and "train" not in dataset.splits:
        yield Sign("no-training-file", _instead(dataset), where="train.jsonl", severity=severity)
        return
    yield from _validation(dataset, config, log)
    train = dataset.splits.get("train")
    if train is None or not train.rows:
        return
    can_render = tokenizer is None or tokenizer.chat_template or tokenizer.renders_itself
    if train.format in ("chat", "completions") and not can_render:
        yield _sign("no-template", train, [], severity, format=train.format)
    # Another trainer may read pairs that are not read here.
    elif rows is not None and train.format != "pairs":
        yield from _refused(train, rows, severity)
    if train.format == "text" and config is not None and config.mask_prompt:
        yield _sign("mask-needs-messages", train, [], severity)
    yield from _conversations(train, tokenizer)


def _validation(
    dataset: Dataset, config: TrainingConfig | None, log: TrainingLog | None
) -> Iterator[Sign]:
    """Why there is no meaningful validation loss."""
    split = dataset.splits.get("valid")
    count = len(split.rows) if split is not None else 0
    batch_size = config.batch_size if config is not None else None
    validations, reports = 0, None
    if log is not None:
        validations, training = len(log.main.finite("val_loss")), log.main.get("train_loss")
        if not log.is_preference and log.main.get("val_loss") is None and training is not None:
            reports = len(training)
    # If the data are a single file, its folder was not searched for a validation split.
    if count == 0 and dataset.path.is_dir():
        train = dataset.splits.get("train")
        passes = rows_gone_over(config, log) / max(len(train.rows) if train is not None else 0, 1)
        if reports and 0.0 < passes <= ONCE:
            yield Sign("met-once", {"passes": passes})
            return
        counts = {"reports": reports, "validations": validations or None}
        severity = None if reports is None else Severity.WARNING
        yield Sign("no-validation-split", counts, where="valid.jsonl", severity=severity)
    # A trainer other than mlx-lm may use smaller batches, and then it validates.
    elif count and not validations and batch_size is not None and count < batch_size:
        figures = {"rows": count, "batch_size": batch_size}
        where, severity = "valid.jsonl", Severity.ERROR
        yield Sign("no-validation-batches", figures, where=where, severity=severity)
    elif count and config is not None and config.val_batches == 0:
        yield Sign("no-validation-batches", {"val_batches": 0})


def _instead(dataset: Dataset) -> dict[str, Measurement]:
    """What a folder has in place of its training file."""
    elsewhere = rows_elsewhere(dataset.path)
    deeper = next((path for path in elsewhere if path.is_dir()), None)
    others = [path.name for path in elsewhere if not path.is_dir()]
    return {
        "folder": dataset.path.name,
        "deeper": deeper.name if deeper is not None else None,
        "path": str(deeper) if deeper is not None else None,
        "others": some_of(others) if others else None,
    }


def _lines(split: Split, severity: Severity | None) -> Iterator[Sign]:
    """Lines that are not rows, and rows that are not in the format of the first row."""
    if split.bad_lines:
        lines = list(split.bad_lines)
        reason = split.bad_lines[lines[0]]
        yield _sign("bad-lines", split, lines, severity, first_line=lines[0], reason=reason)
    if not split.rows:
        if split.name == "train" and not split.bad_lines:
            yield _sign("no-rows", split, [])
    elif split.format not in ("pairs", "unknown"):
        needed = split.features.needed[split.format]
        numbered = zip(split.line_numbers, split.rows, strict=True)
        other = [line for line, row in numbered if not all(key in row for key in needed)]
        if other:
            yield _sign("mixed-formats", split, other, severity, format=split.format)


def _of_another_trainer(split: Split, severity: Severity | None, *, is_own: bool) -> Iterator[Sign]:
    """Rows in a format that mlx-lm has no reader for, though the trainer of the run may."""
    if split.format == "pairs" and is_own:
        yield _sign("pairs", split, [])
    elif split.format in ("pairs", "unknown"):
        first = split.rows[0]
        keys = some_of([*map(quoted, sorted(map(str, first)))], 8) or "(none)"
        figures = {"keys": keys, "rename": how_to_rename(first)}
        yield _sign("unknown-format", split, split.line_numbers[:1], severity, **figures)


def _refused(train: Split, rows: SupervisedRows, severity: Severity | None) -> Iterator[Sign]:
    """Rows of the first row's format that the template or the tokenizer refuses."""
    refused = [
        index
        for index in rows.refused
        if train.features.format_of(train.rows[index]) == train.format
    ]
    if refused:
        reason, lines = rows.refused[refused[0]], [train.line_numbers[index] for index in refused]
        renames = of_messages(train.rows[refused[0]].get(train.features.chat))
        figures: dict[str, Measurement] = {"examined": rows.examined_rows, "reason": reason}
        figures["renames"] = renames
        yield _sign("rows-refused", train, lines, severity, **figures)


def _conversations(split: Split, tokenizer: Tokenizer | None) -> Iterator[Sign]:
    template = tokenizer.chat_template if tokenizer is not None else None
    lines: dict[str, list[int]] = defaultdict(list)
    unusual: set[str] = set()
    for line, row in zip(split.line_numbers, split.rows, strict=True):
        messages = split.conversation(row)
        # Messages whose role has another key make the row refused: `_refused` reports them.
        if not messages or of_messages(messages):
            continue
        roles = [str(message.get("role")) for message in messages]
        unknown = {role for role in set(roles) - _ROLES if template is None or role not in template}
        unusual |= unknown
        empty = [role for role, message in zip(roles, messages, strict=True) if _is_empty(message)]
        is_answered = roles[-1] == "assistant"
        # A role such as "gpt" is reported as an unknown role, not as a missing answer.
        means_assistant = any(new == "assistant" for _, new in roles_renamed(roles[-1:]))
        symptoms = {
            "no-answer": not (is_answered or means_assistant),
            "unknown-roles": bool(unknown),
            "empty-answers": is_answered and _is_empty(messages[-1]),
            "empty-prompts": "user" in empty,
        }
        for symptom, is_present in symptoms.items():
            if is_present:
                lines[symptom].append(line)
    for symptom, affected in lines.items():
        severity: Severity | None = None
        measured: dict[str, Measurement] = {}
        share = len(affected) / len(split.rows)
        if symptom == "unknown-roles":
            renames = " and ".join(f"{old} -> {new}" for old, new in roles_renamed(unusual)) or None
            names = ", ".join(map(quoted, sorted(unusual)[:5]))
            measured = {"roles": names, "renames": renames}
            if share == 1.0 and renames and template is not None:
                severity = Severity.ERROR
        elif symptom == "empty-answers" and share < _EMPTY_NOTE:
            severity = Severity.INFO
        elif symptom == "empty-answers" and share >= _EMPTY_ERROR and len(affected) >= _EMPTY_ROWS:
            severity, measured = Severity.ERROR, {"share": share}
        yield _sign(symptom, split, affected, severity, **measured)


def _is_empty(message: Message) -> bool:
    content = message.get("content")
    has_text = content.strip() if isinstance(content, str) else content
    return not has_text and not message.get("tool_calls")


def _sign(
    symptom: str,
    split: Split,
    lines: Sequence[int],
    severity: Severity | None = None,
    **measured: Measurement,
) -> Sign:
    """A sign about lines of a file, with their count and the first line numbers."""
    where = name = split.path.name
    figures: dict[str, Measurement] = {"file": name, "lines": len(lines), "rows": len(split.rows)}
    if lines:
        where, figures["first_lines"] = f"{name}, line {lines[0]}", tuple(lines[:5])
    return Sign(symptom, figures | measured, where=where, severity=severity)
