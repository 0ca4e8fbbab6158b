"""A model's greedy answers to prompts, in batches."""

from collections.abc import Callable, Sequence
from typing import Any

from mlxdoctor.models.forward import batches, likeliest, require_tokens
from mlxdoctor.models.prompts import Prompt

#: Tokens, padding and answers included, whose keys and values are kept: 380 MB of a model of 135 M
#: parameters.
CACHED_TOKENS = 8192
#: Tokens of each prompt that are read at once.
READ_AT_ONCE = 512
#: Share of a batch that is still being answered below which the rest is left behind.
STILL_GOING = 0.75
#: What a model raises that does not take a batch.
_NO_BATCH = (ValueError, TypeError, AttributeError, IndexError)


def answer(
    model: Any,
    prompts: Sequence[Prompt],
    ends: Sequence[int],
    max_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[int, ...]]:
    """One model's greedy answers, as token ids, the end token included where it was chosen.

    Raises:
        ValueError: a token is outside the model's vocabulary.
    """
    require_tokens(model, max((max(prompt.tokens) for prompt in prompts), default=0))
    answers: dict[int, tuple[int, ...]] = {}
    for batch in batches([len(prompt.tokens) + max_tokens for prompt in prompts], CACHED_TOKENS):
        texts = [prompts[i].tokens for i in batch]
        try:
            done = _answers(model, texts, ends, max_tokens)
        except _NO_BATCH:
            # Of some families (Gemma 2, GPT-BigCode) mlx-lm runs one prompt and no batch.
            if len(texts) == 1:
                raise
            done = [_answers(model, [text], ends, max_tokens)[0] for text in texts]
        answers |= zip(batch, done, strict=True)
        if progress is not None:
            progress(len(answers), len(prompts))
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
