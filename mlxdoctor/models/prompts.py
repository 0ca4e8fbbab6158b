"""The prompts that both models are asked: the run's own, and a few general ones."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mlxdoctor.engines.text import CONTROL, evenly
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Dataset, Message, Row, Split
from mlxdoctor.evidence.tokenizer import Tokenizer

#: Questions that any chat model answers; a run's own data says nothing about forgetting.
GENERAL_PROMPTS = (
    "What is 2 + 2?",
    "Name three colours.",
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Why is the sky blue? Answer in one sentence.",
    "Translate 'good morning' into Spanish.",
)
#: Prompts of at most this many tokens are used where there are enough of them.
LONGEST_PROMPT = 1024
#: Of a row of plain text, at most this many tokens are the prompt.
LONGEST_TEXT_PROMPT = 64
#: Answers up to which rows are of a few classes, and rows that are looked at for them.
CLASSES, ROWS_GROUPED = 8, 1000
#: Share of the rows that have a system prompt where all are meant to.
MOST = 0.9
#: Formats in which people write a question and its answer without a chat template.
PLAIN_FORMATS = (
    "{prompt} {answer}",
    "{prompt}\n{answer}",
    "{prompt}\n\n{answer}",
    "Q: {prompt}\nA: {answer}",
    "Question: {prompt}\nAnswer: {answer}",
    "User: {prompt}\nAssistant: {answer}",
    "USER: {prompt} ASSISTANT: {answer}",
    "USER: {prompt}\nASSISTANT: {answer}",
    "### Instruction:\n{prompt}\n\n### Response:\n{answer}",
    "[INST] {prompt} [/INST] {answer}",
    "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>",
)


@dataclass(frozen=True)
class Prompt:
    """A prompt, ready for a model.

    Attributes:
        text: as the user wrote it.
        tokens: with the chat template and the generation prompt.
        origin: a split of the data, or "general".
    """

    text: str
    tokens: tuple[int, ...]
    expected: str | None = None
    origin: str = "general"


def prompts_for(
    dataset: Dataset | None, tokenizer: Tokenizer, *, held_out: int = 16, trained: int = 8
) -> tuple[Prompt, ...]:
    """Prompts to compare two models on: the run's own, and a few general ones.

    Args:
        held_out: how many to take from the validation or test rows.
        trained: how many to take from the training rows.
    """
    prompts: list[Prompt] = []
    given = dataset.held_out.splits if dataset is not None else {}
    for names, count in ((("valid", "test"), held_out), (("train",), trained)):
        splits = [given[name] for name in names if name in given and given[name].rows]
        for split in splits[:1]:
            seen = {prompt.text for prompt in prompts}
            prompts += _from_split(split, tokenizer, count, seen)
    return (*prompts, *(plain_prompt(tokenizer, text) for text in GENERAL_PROMPTS))


def plain_prompt(
    tokenizer: Tokenizer, text: str, system: str = "", turns: Sequence[dict[str, str]] = ()
) -> Prompt:
    """A question as a user types it, or a conversation: in the chat template where there is one."""
    before = [{"role": "system", "content": system}] if system else []
    asked = turns or [{"role": "user", "content": text}]
    return Prompt(text, tuple(in_template(tokenizer, [*before, *asked])))


def system_of(dataset: Dataset | None) -> str:
    """The commonest system prompt of the rows; empty where not nearly all have one."""
    splits = dataset.splits.values() if dataset is not None else ()
    rows = [(split, row) for split in splits if split.format == "chat" for row in split.rows]
    sample = [rows[place] for place in evenly(len(rows))]
    firsts = [first for split, row in sample for first in split.conversation(row)[:1]]
    found = Counter(str(each.get("content")) for each in firsts if each.get("role") == "system")
    is_usual = found.total() >= MOST * len(sample)
    return next((text for text, _ in found.most_common(1) if is_usual), "")


def in_template(
    tokenizer: Tokenizer, messages: list[dict[str, str]], *, begin: bool = True
) -> list[int]:
    """Messages in the chat template, with or without the generation prompt; else the last alone."""
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=begin)
    except TemplateFailure:
        return tokenizer.encode(messages[-1]["content"])


def as_in_the_data(
    dataset: Dataset | None, tokenizer: Tokenizer, texts: Sequence[str], system: str = ""
) -> list[Prompt]:
    """Questions as the rows ask them that have the same one: after their system prompt and turns.

    Where all rows are texts without the marks of a chat, other questions stand between the marks
    that the texts have, if any. Else they are asked as a user types them, after `system`; one with
    the signs of a template has been through it.
    """
    prompts: dict[str, Prompt] = {}
    splits = dataset.splits.values() if dataset is not None else ()
    rows = [(split, row) for split in splits for row in split.rows]
    for split, row in rows:
        exchange = split.exchange(row)
        for text in _asked_in(split, row, texts):
            if split.format == "text" and (exchange is None or text != exchange.asked):
                tokens = tuple(tokenizer.encode(text))
                prompts.setdefault(text, Prompt(text, tokens, None, split.name))
            elif (prompt := _from_row(split, row, tokenizer)) is not None:
                prompts.setdefault(text, prompt)
    sample = [rows[place] for place in evenly(len(rows))]
    is_plain = bool(sample) and all(
        split.format == "text" and not CONTROL.search(str(row.get(split.features.text)))
        for split, row in sample
    )

    marked = next((one for split, row in sample if (one := split.exchange(row))), None)

    def other(text: str) -> Prompt:
        if not is_plain:
            return plain_prompt(tokenizer, text, system)
        asked = text
        if marked is not None and marked.marks[1] not in text:
            opening, _, closing = marked.before.rpartition(marked.asked)
            asked = opening + text + closing
        return Prompt(text, tuple(tokenizer.encode(asked)))

    return [
        Prompt(text, tuple(tokenizer.encode(text)))
        if CONTROL.search(text)
        else prompts.get(text) or other(text)
        for text in texts
    ]


def _from_split(split: Split, tokenizer: Tokenizer, count: int, seen: set[str]) -> list[Prompt]:
    prompts: list[Prompt] = []
    too_long: list[Prompt] = []
    for row in _by_answers(split):
        if len(prompts) == count:
            break
        prompt = _from_row(split, row, tokenizer)
        if prompt is not None and prompt.tokens and prompt.text not in seen:
            seen.add(prompt.text)
            (prompts if len(prompt.tokens) <= LONGEST_PROMPT else too_long).append(prompt)
    return (prompts + too_long)[:count]


def _by_answers(split: Split) -> Sequence[Row]:
    """The rows; where they have a few answers only, one of each after the other, the rare too."""
    groups: dict[str, list[Row]] = {}
    for row in split.rows[:ROWS_GROUPED]:
        groups.setdefault(split.pair(row).answer, []).append(row)
    if len(groups) > CLASSES:
        return split.rows
    return [row for turn in zip_longest(*groups.values()) for row in turn if row is not None]


def _from_row(split: Split, row: Row, tokenizer: Tokenizer) -> Prompt | None:
    if exchange := split.exchange(row):
        before = tuple(tokenizer.encode(exchange.before))
        return Prompt(exchange.asked, before, exchange.answered, split.name)
    if split.format == "text":
        tokens = tokenizer.encode(str(row[split.features.text]))
        start = tuple(int(token) for token in tokens[: min(LONGEST_TEXT_PROMPT, len(tokens) // 2)])
        return Prompt(tokenizer.decode(start), start, None, split.name)
    if not (messages := _messages(row, split)):
        # mlx-lm would not train on it either; another check's finding.
        return None
    asked, answer = _asked(messages)
    try:
        tokens = tokenizer.apply_chat_template(asked, row.get("tools"), True)
    except (KeyError, TypeError, AttributeError, TemplateFailure):
        return None
    expected = answer if isinstance(answer, str) else None
    return Prompt(_question(asked), tuple(tokens), expected, split.name)


def _messages(row: Row, split: Split) -> list[Message]:
    """The conversation of a row, if any; of a prompt that is rewarded, what is asked."""
    if split.format != "unknown":
        return split.conversation(row)
    question = row.get(split.features.prompt)
    if not isinstance(question, str):
        return []
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return [*system, {"role": "user", "content": question}]


def _asked_in(split: Split, row: Row, texts: Sequence[str]) -> list[str]:
    """Those of the questions that a row asks."""
    if split.format == "text":
        content, exchange = str(row.get(split.features.text)), split.exchange(row)
        question = exchange.asked if exchange else None
        return [text for text in texts if content.startswith(text) or text == question]
    question = _question(_asked(_messages(row, split))[0])
    return [question] if question in texts else []


def _asked(messages: Sequence[Message]) -> tuple[Sequence[Message], object]:
    """A conversation without its answer, and the answer where one follows."""
    if messages and messages[-1].get("role") == "assistant":
        return messages[:-1], messages[-1].get("content")
    return messages, None


def _question(asked: Sequence[Message]) -> str:
    return str(asked[-1].get("content")) if asked else ""
