"""Whether the data files are what mlx-lm can train on.

What it finds. Lines that are no JSON objects, rows in a format mlx-lm does not know or in another
one than the first row, rows that the chat template refuses, conversations without an answer or
with unusual roles, and empty answers.

Why it matters. mlx-lm stops at a line it can't read and at a row it can't tokenize, sometimes in
the middle of a run. What it does read but nobody meant to train on is learned all the same.

How it is measured. Every line is parsed. The first row decides the format, as in mlx-lm, and the
others are compared with it. The rows examined are rendered with the model's chat template.

When it is wrong. A trainer other than mlx-lm may read more formats. Where the log shows that the
run got going, unreadable rows are warnings: it must have skipped them, or the files have changed.

What to do. Repair or remove the lines that are named.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mlxdoctor.check import check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, Row, Split
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.safety.quoting import quoted

#: Characters of an unusual role that are shown.
MAX_ROLE = 20
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})


@check(
    codes={
        "bad-lines": "lines are not JSON objects",
        "no-rows": "the training file has no rows",
        "unknown-format": "the rows have none of the keys that mlx-lm looks for",
        "mixed-formats": "rows are in another format than the first row",
        "rows-refused": "rows cannot be tokenized",
        "mask-needs-messages": "mask_prompt is set on rows of plain text",
        "no-answer": "conversations do not end with an answer by the assistant",
        "unknown-roles": "messages have roles that chat templates do not know",
        "empty-answers": "answers are empty",
        "empty-prompts": "prompts are empty",
    },
)
def data_format(
    dataset: Dataset,
    rows: SupervisedRows | None,
    config: TrainingConfig | None,
    log: TrainingLog | None,
) -> Iterator[Finding]:
    """Report lines and rows that can't be trained on."""
    started = log is not None and log.main.get("train_loss") is not None
    fatal = Severity.WARNING if started else Severity.ERROR
    for split in dataset.splits.values():
        if split.name in ("train", "valid"):
            yield from _lines(split, fatal)
            yield from _formats(dataset, split, fatal)
    train = dataset.splits.get("train")
    if train is None:
        return
    if rows is not None and rows.refused:
        same = [
            one
            for one in rows.refused
            if dataset.features.format_of(train.rows[one.index]) == train.format
        ]
        if same:
            yield _finding(
                "rows-refused",
                fatal,
                f"{len(same)} of {rows.examined_rows} rows cannot be tokenized: {same[0].reason}.",
                train,
                [train.line_numbers[one.index] for one in same],
                fix="mlx-lm stops at such a row: repair or remove it",
            )
    if train.format == "text" and config is not None and config.mask_prompt:
        yield Finding(
            code="data-format.mask-needs-messages",
            severity=fatal,
            message="mask_prompt is set, but the rows are plain text, where mlx-lm can't tell the "
            "prompt from the answer and refuses to start.",
            measured={"mask_prompt": True, "format": "text"},
            expected="rows with messages, or with a prompt and a completion",
            where=train.path.name,
            fix="convert the rows to messages, or leave mask_prompt out",
        )
    yield from _conversations(dataset, train)


def _lines(split: Split, fatal: Severity) -> Iterator[Finding]:
    if split.bad_lines:
        first = split.bad_lines[0]
        yield _finding(
            "bad-lines",
            fatal,
            f"{len(split.bad_lines)} lines of {split.path.name} are no rows: line "
            f"{first.number} {first.reason}.",
            split,
            [bad.number for bad in split.bad_lines],
            fix="write one JSON object a line, in UTF-8, and no blank line",
        )
    if not split.rows and split.name == "train":
        yield _finding(
            "no-rows",
            Severity.ERROR,
            f"{split.path.name} has no rows: there is nothing to train on.",
            split,
            [],
            fix="write the rows again; the file was probably not written to the end",
        )


def _formats(dataset: Dataset, split: Split, fatal: Severity) -> Iterator[Finding]:
    if not split.rows:
        return
    if split.format == "unknown":
        keys = ", ".join(sorted(map(str, split.rows[0]))[:8])
        yield _finding(
            "unknown-format",
            fatal,
            f"The first row of {split.path.name} has the keys {keys or '(none)'}, and mlx-lm looks "
            f"for messages, prompt and completion, or text.",
            split,
            [split.line_numbers[0]],
            fix="rename the keys, or name them with prompt_feature and completion_feature",
        )
        return
    other = [
        line
        for line, row in zip(split.line_numbers, split.rows, strict=True)
        if not _readable_as(split.format, row, dataset)
    ]
    if other:
        yield _finding(
            "mixed-formats",
            fatal,
            f"{len(other)} of {len(split.rows)} rows of {split.path.name} lack the keys of the "
            f"first row's format ({split.format}), which mlx-lm expects of every row.",
            split,
            other,
            fix="put every row into one format",
        )


def _readable_as(row_format: str, row: Row, dataset: Dataset) -> bool:
    features = dataset.features
    wanted = {
        "completions": (features.prompt, features.completion),
        "chat": (features.chat,),
        "text": (features.text,),
        "tokens": ("tokens",),
    }[row_format]
    return all(key in row for key in wanted)


def _conversations(dataset: Dataset, split: Split) -> Iterator[Finding]:
    unanswered: list[int] = []
    strange: dict[str, int] = {}
    strange_lines: list[int] = []
    no_answer_text: list[int] = []
    no_prompt_text: list[int] = []
    for line, row in zip(split.line_numbers, split.rows, strict=True):
        messages = _messages(dataset, split, row)
        if not messages:
            continue
        roles = [str(message.get("role")) for message in messages]
        unknown = [role for role in roles if role not in _ROLES]
        if unknown:
            strange_lines.append(line)
            for role in unknown:
                strange[role] = strange.get(role, 0) + 1
        if roles[-1] != "assistant":
            unanswered.append(line)
        elif _is_empty(messages[-1]):
            no_answer_text.append(line)
        if any(
            role == "user" and _is_empty(one) for role, one in zip(roles, messages, strict=True)
        ):
            no_prompt_text.append(line)
    of = f"of {len(split.rows)} rows"
    if unanswered:
        yield _finding(
            "no-answer",
            Severity.WARNING,
            f"{len(unanswered)} {of} do not end with an answer by the assistant: mlx-lm trains "
            f"on whatever comes last.",
            split,
            unanswered,
            fix="end every conversation with the assistant's answer",
        )
    if strange:
        names = ", ".join(quoted(one, MAX_ROLE) for one in sorted(strange)[:5])
        yield _finding(
            "unknown-roles",
            Severity.WARNING,
            f"{len(strange_lines)} {of} have messages with unusual roles ({names}), which chat "
            f"templates leave out or write as they are.",
            split,
            strange_lines,
            fix="use the roles system, user, assistant and tool",
        )
    for symptom, lines, what in (
        ("empty-answers", no_answer_text, "answer"),
        ("empty-prompts", no_prompt_text, "prompt"),
    ):
        if lines:
            yield _finding(
                symptom,
                Severity.WARNING,
                f"{len(lines)} {of} have an empty {what}.",
                split,
                lines,
                fix="remove these rows, or fill them in",
            )


def _messages(dataset: Dataset, split: Split, row: Row) -> list[Mapping[str, Any]]:
    features = dataset.features
    if split.format == "completions" and _readable_as("completions", row, dataset):
        return [
            {"role": "user", "content": row[features.prompt]},
            {"role": "assistant", "content": row[features.completion]},
        ]
    value = row.get(features.chat) if split.format == "chat" else None
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        return []
    return value


def _is_empty(message: Mapping[str, Any]) -> bool:
    if message.get("tool_calls"):
        return False
    content = message.get("content")
    return not (content.strip() if isinstance(content, str) else content)


def _finding(
    symptom: str, severity: Severity, message: str, split: Split, lines: list[int], *, fix: str
) -> Finding:
    measured: dict[str, Measurement] = {"lines": len(lines), "rows": len(split.rows)}
    if lines:
        measured["first_lines"] = tuple(lines[:5])
    return Finding(
        code=f"data-format.{symptom}",
        severity=severity,
        message=message,
        measured=measured,
        expected="one row a line, all in the first row's format",
        where=f"{split.path.name}, line {lines[0]}" if lines else split.path.name,
        fix=fix,
    )
