"""Whether the data files are what mlx-lm can train on.

What it finds. Lines that are no JSON objects, rows in a format mlx-lm does not know or in another
one than the first row, rows that need a chat template where the model has none, rows that the
template refuses, conversations without an answer or with unusual roles, and empty answers.

Why it matters. mlx-lm stops at a line it can't read and at a row it can't tokenize, sometimes in
the middle of a run. What it does read but nobody meant to train on is learned all the same.

How it is measured. Every line is parsed. The first row decides the format, as in mlx-lm, and the
others are compared with it. The rows examined are rendered with the model's chat template. Empty
answers are counted: a few are a note, more a warning, and where they are more than a third, which
is more than in data sets with unanswerable questions, the error that explains a silent model.

When it is wrong. A trainer other than mlx-lm may read more formats. Rows whose answers are to be
empty, because saying nothing is what is taught, are called empty all the same. Where the log shows
that the run got going, unreadable rows are warnings: it must have skipped them, or the files have
changed.

What to do. What the finding says: which keys or roles to rename to what, which model to take, or
which lines to repair or remove.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxdoctor.check import check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, Row, Split
from mlxdoctor.evidence.prompt_answer import Message, has_format, messages_of
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.text.renames import how_to_rename, of_messages, roles_renamed
from mlxdoctor.safety.quoting import quoted

#: Characters of an unusual role, and of a key, that are shown.
MAX_ROLE = 20
MAX_KEY = 40
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
_ROWS = "one row a line, all in the first row's format"
_FILL_IN = "remove these rows, or fill them in"


@dataclass(frozen=True)
class Limits:
    """When rows with empty answers are worth a warning, and when they are the cause."""

    empty_note: float = limit(
        0.02,
        unit="share of rows with an empty answer; a note below",
        source="designed: a few gaps in a column teach nothing",
    )
    empty: float = limit(
        0.35,
        unit="share of rows with an empty answer, for an error",
        source="a third of SQuAD 2.0's questions have no answer, on purpose; with 0.3 none of 30 "
        "prompts is left without an answer, with 0.4 9 and 12 are (two bases), with 0.7 all",
        false_alarms="0 of 46 sound runs of real text and 33 of a small base",
    )
    empty_rows: int = limit(
        8, unit="rows with an empty answer, for an error", source="fewer may be examples"
    )


@check(
    codes={
        "bad-lines": Symptom.error(
            "lines are not JSON objects",
            expected=_ROWS,
            fix="write one JSON object a line, in UTF-8, and no blank line",
        ),
        "no-rows": Symptom.error(
            "the training file has no rows",
            expected=_ROWS,
            fix="write the rows again; the file was probably not written to the end",
        ),
        "unknown-format": Symptom.error(
            "the rows have none of the keys that mlx-lm looks for",
            expected=_ROWS,
            fix="rename the keys, or name them with prompt_feature and completion_feature",
        ),
        "mixed-formats": Symptom.error(
            "rows are in another format than the first row",
            expected=_ROWS,
            fix="put every row into one format",
        ),
        "rows-refused": Symptom.error(
            "rows cannot be tokenized",
            expected=_ROWS,
            fix="mlx-lm stops at such a row: repair or remove it",
        ),
        "no-template": Symptom.error(
            "the rows need a chat template, and the model has none",
            expected="a model with a chat template, or rows of text",
            fix="train the model's instruct version, which has a chat template, or write the rows "
            'as {"text": ...} in the format that the model is to continue',
        ),
        "mask-needs-messages": Symptom.error(
            "mask_prompt is set on rows of plain text",
            expected="rows with messages, or with a prompt and a completion",
            fix="convert the rows to messages, or leave mask_prompt out",
        ),
        "no-answer": Symptom.warning(
            "conversations do not end with an answer by the assistant",
            expected=_ROWS,
            fix="end every conversation with the assistant's answer",
        ),
        "unknown-roles": Symptom.warning(
            "messages have roles that chat templates do not know",
            expected=_ROWS,
            fix="use the roles system, user, assistant and tool",
        ),
        "empty-answers": Symptom.warning("answers are empty", expected=_ROWS, fix=_FILL_IN),
        "many-empty-answers": Symptom.error(
            "so many answers are empty that ending at once is what is taught",
            expected=_ROWS,
            fix="remove these rows, or fill them in, and train again",
        ),
        "empty-prompts": Symptom.warning("prompts are empty", expected=_ROWS, fix=_FILL_IN),
    },
    limits=Limits(),
)
def data_format(
    dataset: Dataset,
    *,
    rows: SupervisedRows | None,
    config: TrainingConfig | None,
    log: TrainingLog | None,
    tokenizer: Tokenizer | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Report lines and rows that can't be trained on."""
    started = log is not None and log.main.get("train_loss") is not None
    survived = Severity.WARNING if started else None
    of_preferences = config is not None and config.of_preferences
    of_preferences |= log is not None and log.is_preference
    for split in dataset.splits.values():
        if split.name in ("train", "valid"):
            yield from _lines(split, survived)
            # Pairs and prompts are rows of trainers that mlx-lm is none of.
            if not (of_preferences and split.format == "unknown"):
                yield from _formats(dataset, split, survived)
    train = dataset.splits.get("train")
    if train is None:
        return
    refused = [
        one
        for one in (rows.refused if rows is not None else ())
        if dataset.features.format_of(train.rows[one.index]) == train.format
    ]
    needs_template = train.format in ("chat", "completions")
    if needs_template and refused and tokenizer is not None and _lacks_template(tokenizer):
        what = "conversations" if train.format == "chat" else "prompts with completions"
        yield Sign(
            "no-template",
            f"The rows of {train.path.name} are {what}, and the base model's tokenizer has no chat "
            "template to write them with: mlx-lm does not start.",
            {"format": train.format, "rows": len(train.rows)},
            where=train.path.name,
            severity=survived,
        )
    elif rows is not None and refused:
        yield _sign(
            "rows-refused",
            f"{len(refused)} of {rows.examined_rows} rows cannot be tokenized: "
            f"{refused[0].reason}.",
            train,
            [train.line_numbers[one.index] for one in refused],
            survived,
            fix=_none_in_time(rows, refused[0].reason)
            or _repair(refused[0].reason, dataset, train, refused[0].index),
        )
    if train.format == "text" and config is not None and config.mask_prompt:
        yield Sign(
            "mask-needs-messages",
            "mask_prompt is set, but the rows are plain text, where mlx-lm can't tell the "
            "prompt from the answer and refuses to start.",
            {"mask_prompt": True, "format": "text"},
            where=train.path.name,
            severity=survived,
        )
    yield from _conversations(dataset, train, tokenizer, limits)


def _lacks_template(tokenizer: Tokenizer) -> bool:
    return tokenizer.chat_template is None and not tokenizer.renders_itself


def _none_in_time(rows: SupervisedRows, reason: str) -> str | None:
    """What to do where no row is rendered in time: the template may be at fault, or long rows."""
    if "(limit template_seconds)" not in reason or len(rows.refused) < rows.examined_rows:
        return None
    return (
        "compare the chat template with the one that came with the base model, and look for "
        "conversations of very many messages: no row was rendered in time"
    )


def _repair(reason: str, dataset: Dataset, split: Split, index: int) -> str | None:
    """What to do about a row that is refused, where the reason tells."""
    inner = of_messages(split.rows[index].get(dataset.features.chat))
    if inner is not None:
        return f"rename {inner}"
    if "alternate" in reason:
        return (
            "let user and assistant take turns, beginning with the user: join two messages of one "
            "role into one"
        )
    if "system" in reason.lower() and "support" in reason.lower():
        return "put the text of the system message at the start of the first user's message"
    if reason.startswith("its text is not"):
        return "write the text of every row as a string"
    return None


def _lines(split: Split, survived: Severity | None) -> Iterator[Sign]:
    if split.bad_lines:
        first = split.bad_lines[0]
        yield _sign(
            "bad-lines",
            f"{len(split.bad_lines)} lines of {split.path.name} are no rows: line "
            f"{first.number} {first.reason}.",
            split,
            [bad.number for bad in split.bad_lines],
            survived,
        )
    if not split.rows and split.name == "train":
        message = f"{split.path.name} has no rows: there is nothing to train on."
        yield _sign("no-rows", message, split, [])


def _formats(dataset: Dataset, split: Split, survived: Severity | None) -> Iterator[Sign]:
    if not split.rows:
        return
    if split.format == "unknown":
        keys = some_of([quoted(key, MAX_KEY) for key in sorted(map(str, split.rows[0]))], 8)
        yield _sign(
            "unknown-format",
            f"The first row of {split.path.name} has the keys {keys or '(none)'}, and mlx-lm looks "
            "for messages, prompt and completion, or text.",
            split,
            split.line_numbers[:1],
            survived,
            fix=how_to_rename(split.rows[0]),
        )
        return
    other = [
        line
        for line, row in zip(split.line_numbers, split.rows, strict=True)
        if not has_format(row, split.format, dataset.features)
    ]
    if other:
        yield _sign(
            "mixed-formats",
            f"{len(other)} of {len(split.rows)} rows of {split.path.name} lack the keys of the "
            f"first row's format ({split.format}), which mlx-lm expects of every row.",
            split,
            other,
            survived,
        )


def _conversations(
    dataset: Dataset, split: Split, tokenizer: Tokenizer | None, limits: Limits
) -> Iterator[Sign]:
    template = tokenizer.chat_template if tokenizer is not None else None
    lines: dict[str, list[int]] = defaultdict(list)
    strange: set[str] = set()
    for line, row in zip(split.line_numbers, split.rows, strict=True):
        messages = _messages(dataset, split, row)
        if not messages:
            continue
        if of_messages(messages) is not None:
            # Their roles have another key: the row is refused, and told how to be renamed.
            continue
        roles = [str(message.get("role")) for message in messages]
        unknown = {one for one in set(roles) - _ROLES if template is None or one not in template}
        strange |= unknown
        empty = [role for role, one in zip(roles, messages, strict=True) if _is_empty(one)]
        wrong = {
            "no-answer": roles[-1] != "assistant" and not _means_assistant(roles[-1]),
            "unknown-roles": bool(unknown),
            "empty-answers": roles[-1] == "assistant" and _is_empty(messages[-1]),
            "empty-prompts": "user" in empty,
        }
        for symptom, is_so in wrong.items():
            if is_so:
                lines[symptom].append(line)
    names = ", ".join(quoted(one, MAX_ROLE) for one in sorted(strange)[:5])
    said = {
        "no-answer": "do not end with an answer by the assistant: mlx-lm trains on whatever comes "
        "last",
        "unknown-roles": f"have messages with unusual roles ({names}), which chat templates leave "
        "out or write as they are",
        "empty-prompts": "have an empty prompt",
    }
    renames = " and ".join(f"{old} -> {new}" for old, new in roles_renamed(strange))
    fixes = {"unknown-roles": f"rename the roles {renames}" if renames else None}
    # Speakers under another trainer's names, of whom this model's template has never heard.
    foreign = bool(renames) and template is not None
    severe = {"unknown-roles"} if foreign and len(lines["unknown-roles"]) == len(split.rows) else ()
    for symptom, what in said.items():
        if found := lines[symptom]:
            message = f"{len(found)} of {len(split.rows)} rows {what}."
            severity = Severity.ERROR if symptom in severe else None
            yield _sign(symptom, message, split, found, severity, fix=fixes.get(symptom))
    yield from _empty_answers(split, lines["empty-answers"], limits)


def _empty_answers(split: Split, lines: Sequence[int], limits: Limits) -> Iterator[Sign]:
    if not lines:
        return
    share = len(lines) / len(split.rows)
    said = f"{len(lines)} of {len(split.rows)} rows have an empty answer"
    if share >= limits.empty and len(lines) >= limits.empty_rows:
        message = f"{said}: after their prompts the end token is all that is to be learned."
        yield _sign("many-empty-answers", message, split, lines)
        return
    severity = Severity.INFO if share < limits.empty_note else None
    yield _sign("empty-answers", f"{said}.", split, lines, severity)


def _messages(dataset: Dataset, split: Split, row: Row) -> list[Message]:
    try:
        messages = messages_of(row, split.format, dataset.features)
    except (KeyError, TypeError):
        return []
    return messages if all(isinstance(one, Mapping) for one in messages) else []


def _means_assistant(role: str) -> bool:
    return any(new == "assistant" for _, new in roles_renamed([role]))


def _is_empty(message: Mapping[str, Any]) -> bool:
    if message.get("tool_calls"):
        return False
    content = message.get("content")
    return not (content.strip() if isinstance(content, str) else content)


def _sign(
    symptom: str,
    message: str,
    split: Split,
    lines: Sequence[int],
    severity: Severity | None = None,
    *,
    fix: str | None = None,
) -> Sign:
    measured: dict[str, Measurement] = {"lines": len(lines), "rows": len(split.rows)}
    if lines:
        measured["first_lines"] = tuple(lines[:5])
    where = f"{split.path.name}, line {lines[0]}" if lines else split.path.name
    return Sign(symptom, message, measured, where, severity=severity, fix=fix)
