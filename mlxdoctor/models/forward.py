"""What a model predicts at chosen places of token sequences, and answers greedily, in batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.kind import Progress
from mlxdoctor.models.load import LoadedModels, Which, on_cpu
from mlxdoctor.models.prompts import Prompt

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
#: Is told how many are done.
Counted = Callable[[int], None]

#: Tokens of one batch at most, padding included, on a processor and on a GPU.
BATCH_TOKENS = {True: 512, False: 8192}
#: Logits of one batch take at most this much (bytes), likewise; those of one row may take more.
LOGIT_BYTES = {True: 128 << 20, False: 1 << 30}
#: Tokens, padding and answers included, whose keys and values are kept, likewise: 380 and 760 MB of
#: a model of 135 M parameters. A GPU takes as long for a batch of 30 prompts as for one of 4.
CACHED_TOKENS = {True: 8192, False: 16384}
#: Tokens of each prompt that are read at once.
READ_AT_ONCE = 512
#: Share of a batch that is still being answered below which the rest is left behind.
STILL_GOING = 0.75
#: What a model raises that does not take a batch.
_NO_BATCH = (ValueError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Question:
    """A sequence, and the tokens whose losses are wanted.

    Attributes:
        tokens: int32 (n,), what the model reads.
        targets: int32 (p, k), p at most n: k tokens at each of the last p places.
    """

    tokens: Integers
    targets: Integers

    @cached_property
    def key(self) -> tuple[bytes, bytes]:
        """The same for two questions that have the same answer."""
        return self.tokens.tobytes(), self.targets.tobytes()


@dataclass(frozen=True)
class Predicted:
    """What a model says at the p places of a `Question`.

    Attributes:
        losses: float32 (p, k), of the targets: minus their log-probability, nats.
        greedy: int32 (p,), the likeliest token.
    """

    losses: Floats
    greedy: Integers


def predict(
    model: Any, questions: Sequence[Question], progress: Counted = lambda _: None
) -> list[Predicted]:
    """What the model predicts at every asked place, in the order of the questions.

    Raises:
        ValueError: a token is outside the model's vocabulary.
    """
    if not questions:
        return []
    read = [array for question in questions for array in (question.tokens, question.targets)]
    vocab_size = require_tokens(model, max(int(array.max()) for array in read))
    most = min(BATCH_TOKENS[on_cpu()], LOGIT_BYTES[on_cpu()] // (4 * vocab_size))
    predicted: dict[int, Predicted] = {}
    for batch in batches([len(question.tokens) for question in questions], most):
        answers = _predict_batch(model, [questions[i] for i in batch])
        predicted |= zip(batch, answers, strict=True)
        progress(len(predicted))
    return [predicted[i] for i in range(len(questions))]


def batches(lengths: Sequence[int], most_tokens: int) -> Iterator[list[int]]:
    """Places of sequences of like lengths, of so many tokens with padding, or of one sequence."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[i] > most_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def ask(
    models: LoadedModels,
    which: Which,
    questions: Sequence[Question],
    progress: Counted = lambda _: None,
) -> list[Predicted]:
    """As `predict`, and what a model was asked before, it is not asked again.

    Raises:
        InputError: the model cannot be run on this.
    """
    answers = models.answers[which]
    new = {question.key: question for question in questions if question.key not in answers}
    with models.running():
        predicted = predict(models.select(which), list(new.values()), progress)
    answers |= zip(new, predicted, strict=True)
    return [answers[question.key] for question in questions]


def told(progress: Progress | None, doing: str, before: int, total: int) -> Counted:
    """Progress of one stage, before which so many were done, told as that of the whole."""
    if progress is None:
        return lambda _: None
    # Of some rows more than one thing is asked.
    return lambda done: progress(doing, min(before + done, total), total)


def require_tokens(model: Any, highest: int) -> int:
    """The size of a model's vocabulary, which a token must be in: MLX reads whatever is behind it.

    Raises:
        ValueError: the highest id that the model is to read is outside its vocabulary.
    """
    import mlx.core as mx

    size = int(model(mx.zeros((1, 1), mx.int32)).shape[-1])
    if highest >= size:
        raise ValueError(f"token {highest} is outside the vocabulary of {size}")
    return size


def likeliest(logits: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The likeliest token of each row of logits, float32 (n, vocabulary), and its loss in nats."""
    import mlx.core as mx

    if not on_cpu():
        tokens = mx.argmax(logits, axis=-1)
        losses = mx.logsumexp(logits, axis=-1) - mx.max(logits, axis=-1)
        mx.eval(tokens, losses)
        return np.array(tokens, np.int64), np.array(losses, np.float64)
    # On a PC's processor MLX takes 28 ns for an exponential and NumPy 1 ns.
    values = np.array(logits)
    chosen = values.argmax(-1)
    values -= np.take_along_axis(values, chosen[:, None], -1)
    with np.errstate(invalid="ignore"):
        return chosen, np.log(np.exp(values, out=values).sum(-1, dtype=np.float64))


def _predict_batch(model: Any, batch: Sequence[Question]) -> list[Predicted]:
    import mlx.core as mx

    width = max(len(question.tokens) for question in batch)
    most = max(question.targets.shape[1] for question in batch)
    # Padding on the right cannot be seen by a causal model from the left of it.
    inputs = np.zeros((len(batch), width), np.int32)
    places, targets = [], []
    for number, question in enumerate(batch):
        length, (asked, count) = len(question.tokens), question.targets.shape
        inputs[number, :length] = question.tokens
        places.append(number * width + np.arange(length - asked, length, dtype=np.int32))
        targets.append(np.pad(question.targets, ((0, 0), (0, most - count))))
    logits = model(mx.array(inputs))
    logits = logits.reshape(-1, logits.shape[-1])[mx.array(np.concatenate(places))]
    logits = logits.astype(mx.float32)
    greedy, totals = likeliest(logits)
    # A target's loss is that of the likeliest token, and how far it lies below that.
    chosen = mx.array(np.column_stack([greedy, np.concatenate(targets)]).astype(np.int32))
    values = np.array(mx.take_along_axis(logits, chosen, axis=-1))
    with np.errstate(invalid="ignore"):
        losses = values[:, :1] - values[:, 1:] + totals[:, None].astype(np.float32)
    cuts = np.cumsum([len(question.targets) for question in batch])[:-1]
    arrays = (losses, greedy.astype(np.int32))
    parted = zip(batch, *(np.split(array, cuts) for array in arrays), strict=True)
    return [
        Predicted(loss[:, : question.targets.shape[1]], tokens) for question, loss, tokens in parted
    ]


def answer(
    model: Any,
    prompts: Sequence[Prompt],
    ends: Sequence[int],
    max_tokens: int,
    progress: Counted = lambda _: None,
) -> list[tuple[int, ...]]:
    """One model's greedy answers, as token ids, the end token included where it was chosen.

    Raises:
        ValueError: a token is outside the model's vocabulary.
    """
    require_tokens(model, max((max(prompt.tokens) for prompt in prompts), default=0))
    answers: dict[int, tuple[int, ...]] = {}
    lengths = [len(prompt.tokens) + max_tokens for prompt in prompts]
    for batch in batches(lengths, CACHED_TOKENS[on_cpu()]):
        texts = [prompts[i].tokens for i in batch]
        try:
            done = _answers(model, texts, ends, max_tokens)
        except _NO_BATCH:
            # Of some families (Gemma 2, GPT-BigCode) mlx-lm runs one prompt and no batch.
            if len(texts) == 1:
                raise
            done = [_answers(model, [text], ends, max_tokens)[0] for text in texts]
        answers |= zip(batch, done, strict=True)
        progress(len(answers))
    return [answers[i] for i in range(len(prompts))]


def _answers(
    model: Any, texts: Sequence[Sequence[int]], ends: Sequence[int], max_tokens: int
) -> list[tuple[int, ...]]:
    """The answers to one batch, token by token; those that have ended leave it."""
    import mlx.core as mx

    cache = _read(model, texts)
    tokens: list[list[int]] = [[] for _ in texts]
    #: Which text each row of the batch belongs to.
    rows = list(range(len(texts)))
    last = mx.array([[text[-1]] for text in texts])
    ended: set[int] = set()
    for _ in range(max_tokens):
        logits = model(last, cache=cache)[:, -1].astype(mx.float32)
        chosen, _ = likeliest(logits)
        for row, token in zip(rows, chosen.tolist(), strict=True):
            if row not in ended:
                tokens[row].append(token)
        ended |= {row for row in rows if tokens[row][-1] in ends}
        if len(ended) == len(texts):
            break
        going = [place for place, row in enumerate(rows) if row not in ended]
        if len(going) < STILL_GOING * len(rows):
            for layer in cache:
                layer.filter(mx.array(going))
            rows, chosen = [rows[place] for place in going], chosen[going]
        last = mx.array(chosen)[:, None]
    return [tuple(chosen_tokens) for chosen_tokens in tokens]


def _read(model: Any, texts: Sequence[Sequence[int]]) -> list[Any]:
    """The model's cache after all but the last token of each text."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache: list[Any] = make_prompt_cache(model)
    if len(texts) > 1:
        # A kind of cache that can't be merged has no such function.
        layers = zip(cache, *(make_prompt_cache(model) for _ in texts[1:]), strict=True)
        cache = [layer[0].merge(layer) for layer in layers]
    lengths = [len(text) - 1 for text in texts]
    longest = max(lengths)
    padding = [longest - length for length in lengths]
    if any(padding):
        for layer in cache:
            layer.prepare(lengths=lengths, right_padding=padding)
    padded = mx.array(
        [[*text[:-1], *[0] * pad] for text, pad in zip(texts, padding, strict=True)], mx.int32
    )
    for start in range(0, longest, READ_AT_ONCE):
        model(padded[:, start : start + READ_AT_ONCE], cache=cache)
        mx.eval([layer.state for layer in cache])
    if any(padding):
        for layer in cache:
            layer.finalize()
    return cache
