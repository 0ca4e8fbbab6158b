"""A model's greedy answers to prompts, in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Dataset, Features, Row, RowFormat, Split
from mlxdoctor.evidence.prompt_answer import Message, messages_of
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.cpu_functions import CACHE_STEP, on_cpu, quick_functions, small_caches
from mlxdoctor.models.forward import require_known

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
#: Prompts generated together.
BATCH_SIZE = 32
#: Tokens, padding included, whose keys and values are kept on a processor: 95 MB of a model of
#: 135 M parameters.
CACHED_TOKENS = 2048
#: Prompts read together there: while they are, their keys and values are in memory twice.
READ_TOGETHER = 2
#: Tokens of each of them that are read at once.
READ_AT_ONCE = 128
#: The longest prompt of a batch is at most so many times as long as the shortest.
LIKE_LENGTHS = 2.0

#: What a model raises that does not take a batch.
_NO_BATCH = (ValueError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Prompt:
    """A prompt, ready for a model.

    Attributes:
        text: as the user wrote it.
        tokens: with the chat template and the generation prompt.
        expected: the answer that the data gives.
        origin: a split of the data, or "general".
    """

    text: str
    tokens: tuple[int, ...]
    expected: str | None = None
    origin: str = "general"


@dataclass(frozen=True)
class Answer:
    """One greedy answer.

    Attributes:
        tokens: token ids, the end token included where it was chosen.
        loss: the model's mean loss on its own choices, nats per token.
    """

    tokens: tuple[int, ...]
    loss: float


def prompts_for(
    dataset: Dataset | None, tokenizer: Tokenizer, *, held_out: int = 16, trained: int = 8
) -> tuple[Prompt, ...]:
    """Prompts to compare two models on: the run's own, and a few general ones.

    Args:
        dataset: the run's data; None for the general prompts alone.
        tokenizer: the base model's.
        held_out: how many to take from the validation or test rows.
        trained: how many to take from the training rows.
    """
    found: list[Prompt] = []
    splits = dataset.splits if dataset is not None else {}
    for names, count in ((("valid", "test"), held_out), (("train",), trained)):
        split = next((splits[name] for name in names if name in splits and splits[name].rows), None)
        if dataset is not None and split is not None:
            seen = {prompt.text for prompt in found}
            found.extend(_from_split(dataset, split, tokenizer, count, seen))
    found.extend(plain_prompt(tokenizer, text) for text in GENERAL_PROMPTS)
    return tuple(found)


def answer(
    model: Any,
    prompts: Sequence[Prompt],
    ends: Sequence[int],
    max_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """One model's greedy answers, in the order of the prompts.

    Raises:
        ValueError: a token is outside the model's vocabulary.
    """
    from mlx_lm.models.cache import make_prompt_cache

    require_known(model, max((max(one.tokens) for one in prompts), default=0))
    can_batch = all(hasattr(cache, "merge") for cache in make_prompt_cache(model))
    with quick_functions(), small_caches():
        if not can_batch:
            return _one_by_one(model, prompts, ends, max_tokens, progress)
        found: dict[int, Answer] = {}

        def told(done: int) -> None:
            if progress is not None:
                progress(len(found) + done, len(prompts))

        for batch in _batches(prompts):
            some = [prompts[i] for i in batch]
            try:
                said = _batched(model, some, ends, max_tokens, told)
            except _NO_BATCH:
                # Of some families (Gemma 2, GPT-BigCode) mlx-lm runs one prompt and no batch.
                said = _one_by_one(model, some, ends, max_tokens, lambda done, _: told(done))
            found |= dict(zip(batch, said, strict=True))
    return [found[i] for i in range(len(prompts))]


def _batches(prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    """Prompts of like lengths together, so that little memory goes to padding."""
    batch: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens)):
        shortest = len(prompts[batch[0]].tokens) if batch else math.inf
        if len(prompts[i].tokens) > LIKE_LENGTHS * shortest:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _together(prompts: Sequence[Prompt], max_tokens: int) -> int:
    """How many of the prompts can be answered at once; the next take the places of those done."""
    if not on_cpu():
        return BATCH_SIZE
    longest = max(len(prompt.tokens) for prompt in prompts) + max_tokens
    places = -(-longest // CACHE_STEP) * CACHE_STEP
    return min(max(CACHED_TOKENS // places, 1), BATCH_SIZE)


def _batched(
    model: Any,
    prompts: Sequence[Prompt],
    ends: Sequence[int],
    max_tokens: int,
    told: Callable[[int], None],
) -> list[Answer]:
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator

    together = _together(prompts, max_tokens)
    generator = BatchGenerator(
        model,
        max_tokens=max_tokens,
        stop_tokens=[[end] for end in ends],
        completion_batch_size=together,
        prefill_batch_size=min(together, READ_TOGETHER) if on_cpu() else together,
        **({"prefill_step_size": READ_AT_ONCE} if on_cpu() else {}),
    )
    try:
        numbers = generator.insert([list(prompt.tokens) for prompt in prompts])
        tokens: dict[int, list[int]] = {number: [] for number in numbers}
        said: list[tuple[list[int], Any]] = []
        begin: Any = mx.async_eval
        done = 0
        while responses := generator.next_generated():
            chosen = mx.stack([one.logprobs[one.token] for one in responses])
            # Read when all is over: who waited here would keep a GPU waiting at every token.
            begin(chosen)
            said.append(([one.uid for one in responses], chosen))
            for response in responses:
                tokens[response.uid].append(int(response.token))
                done += response.finish_reason is not None
            told(done)
    finally:
        generator.close()
    losses: dict[int, list[float]] = {number: [] for number in numbers}
    for uids, chosen in said:
        for uid, log_probability in zip(uids, chosen.tolist(), strict=True):
            losses[uid].append(-log_probability)
    return [Answer(tuple(tokens[number]), fmean(losses[number])) for number in numbers]


def _one_by_one(
    model: Any,
    prompts: Sequence[Prompt],
    ends: Sequence[int],
    max_tokens: int,
    progress: Callable[[int, int], None] | None,
) -> list[Answer]:
    """For models whose caches cannot be merged into a batch."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    answers = []
    for done, prompt in enumerate(prompts, start=1):
        tokens: list[int] = []
        losses: list[float] = []
        steps = generate_step(mx.array(prompt.tokens), model, max_tokens=max_tokens)
        for token, log_probabilities in steps:
            tokens.append(int(token))
            losses.append(-log_probabilities[token].item())
            if token in ends:
                break
        answers.append(Answer(tuple(tokens), fmean(losses)))
        if progress is not None:
            progress(done, len(prompts))
    return answers


def _from_split(
    dataset: Dataset, split: Split, tokenizer: Tokenizer, count: int, seen: set[str]
) -> list[Prompt]:
    prompts: list[Prompt] = []
    too_long: list[Prompt] = []
    for row in split.rows:
        if len(prompts) == count:
            break
        prompt = _from_row(dataset, split, row, tokenizer)
        if prompt is None or not prompt.tokens or prompt.text in seen:
            continue
        seen.add(prompt.text)
        if len(prompt.tokens) <= LONGEST_PROMPT:
            prompts.append(prompt)
        elif len(too_long) < count:
            too_long.append(prompt)
    return (prompts + too_long)[:count]


def _asked_and_answered(row: Row, row_format: RowFormat, features: Features) -> list[Message]:
    """The conversation of a row; of a pair, or of a prompt that is rewarded, what is asked.

    What is preferred there is no answer that is to be repeated word for word.
    """
    if row_format != "unknown":
        return messages_of(row, row_format, features)
    question = row.get(features.prompt)
    if not isinstance(question, str):
        raise TypeError("it is no prompt")
    told = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return [*told, {"role": "user", "content": question}]


def _from_row(dataset: Dataset, split: Split, row: Any, tokenizer: Tokenizer) -> Prompt | None:
    features = dataset.features
    if split.format in ("text", "tokens"):
        tokens = row["tokens"] if split.format == "tokens" else None
        if tokens is None:
            tokens = tokenizer.encode(str(row[features.text]))
        start = tuple(int(token) for token in tokens[: min(LONGEST_TEXT_PROMPT, len(tokens) // 2)])
        return Prompt(tokenizer.decode(start), start, None, split.name)
    try:
        messages = _asked_and_answered(row, split.format, features)
        *asked, last = messages
        expected = None
        if last.get("role") == "assistant":
            content = last.get("content")
            expected = content if isinstance(content, str) else None
        else:
            asked.append(last)
        question = _question(messages)
        rendered = tokenizer.apply_chat_template(asked, row.get("tools"), True)
    except (KeyError, TypeError, AttributeError, TemplateFailure):
        # mlx-lm would not train on it either; another check's finding.
        return None
    return Prompt(question, tuple(rendered), expected, split.name)


def plain_prompt(tokenizer: Tokenizer, text: str) -> Prompt:
    """A question as a user types it: in the chat template where there is one."""
    return Prompt(text, _rendered(tokenizer, text))


def as_in_the_data(dataset: Dataset, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Prompt]:
    """Questions as the rows ask them that have the same one: after their system prompt and turns.

    What a row of plain text begins with is continued as it is. Other questions are asked as a
    user types them.
    """
    found: dict[str, Prompt] = {}
    for split in dataset.splits.values():
        for row in split.rows:
            for text in _asked_in(dataset, split, row, texts):
                prompt = (
                    Prompt(text, tuple(tokenizer.encode(text)), None, split.name)
                    if split.format == "text"
                    else _from_row(dataset, split, row, tokenizer)
                )
                if prompt is not None:
                    found.setdefault(text, prompt)
    return [found.get(text) or plain_prompt(tokenizer, text) for text in texts]


def _asked_in(dataset: Dataset, split: Split, row: Row, texts: Sequence[str]) -> list[str]:
    """Those of the questions that a row asks."""
    if split.format == "tokens":
        return []
    if split.format == "text":
        content = str(row.get(dataset.features.text))
        return [text for text in texts if content.startswith(text)]
    try:
        question = _question(_asked_and_answered(row, split.format, dataset.features))
    except (KeyError, TypeError, AttributeError):
        return []
    return [question] if question in texts else []


def _question(messages: Sequence[Message]) -> str:
    """What was asked last, whether or not an answer to it follows."""
    *before, last = messages
    asked = before if last.get("role") == "assistant" else messages
    return next((str(one.get("content")) for one in reversed(asked)), "")


def _rendered(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    try:
        messages = [{"role": "user", "content": text}]
        return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
    except TemplateFailure:
        return tuple(tokenizer.encode(text))
