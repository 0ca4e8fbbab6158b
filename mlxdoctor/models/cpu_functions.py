"""Functions of a model that NumPy computes faster than MLX does on a processor of a PC.

MLX 0.32 takes 28 ns for an exponential there, one value after the other, and NumPy 1 ns. A
small model then spends most of its time in the softmax of its attention and its vocabulary and
in the gate of its MLP, not in its matrices. While models are measured, these are computed here
instead, as they are defined, and the losses differ as much as after another order of adding up.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What a masked score is set to: its exponential is 0.
MASKED = np.float32(-1e30)
#: Places by which a cache of keys and values grows; mlx-lm has 256, of which short answers use few.
CACHE_STEP = 32
#: Processors whose exponentials MLX computes one by one.
SLOW_PROCESSORS = frozenset({"x86_64", "amd64"})


def on_cpu() -> bool:
    """Whether MLX computes on the processor here, and not on a GPU."""
    import mlx.core as mx

    return bool(mx.default_device() == mx.Device(mx.cpu))


@contextmanager
def quick_functions() -> Iterator[None]:
    """Let models compute softmax and gate with NumPy meanwhile, where that is faster.

    mlx-lm's models look them up by name: the names stand for these functions until the body
    has ended. What these functions do not know goes to those that they stand for.
    """
    import mlx.core as mx
    from mlx_lm.models import activations

    if not on_cpu() or platform.machine().lower() not in SLOW_PROCESSORS:
        yield
        return
    attention, swiglu = mx.fast.scaled_dot_product_attention, activations.swiglu
    logsumexp = mx.logsumexp
    if isinstance(attention, partial):  # within another such body
        yield
        return
    models = [
        module
        for name, module in tuple(sys.modules.items())
        if name.startswith("mlx_lm.models.") and getattr(module, "swiglu", None) is swiglu
    ]
    try:
        mx.fast.scaled_dot_product_attention = partial(_attention, attention)
        mx.logsumexp = partial(_logsumexp, logsumexp)
        for module in models:
            module.swiglu = partial(_swiglu, swiglu)  # type: ignore[attr-defined]
        yield
    finally:
        mx.fast.scaled_dot_product_attention = attention
        mx.logsumexp = logsumexp
        for module in models:
            module.swiglu = swiglu  # type: ignore[attr-defined]


def _attention(
    slow: Callable[..., Any], q: Any, k: Any, v: Any, *, scale: float, mask: Any = None, **more: Any
) -> Any:
    """Softmax attention: (batch, heads, n, width) of queries, keys and values."""
    import mlx.core as mx

    is_plain = q.dtype == mx.float32 and all(one is None for one in more.values())
    if not is_plain or not _is_known(mask):
        return slow(q, k, v, scale=scale, mask=mask, **more)
    batch, heads, n, width = q.shape
    groups, length = k.shape[1:3]
    scores = (q * scale).reshape(batch, groups, -1, width) @ k.swapaxes(-1, -2)
    weights = np.array(scores).reshape(batch, groups, heads // groups, n, length)
    hidden = _hidden(mask, n, length)
    if hidden is not None:
        np.copyto(weights, MASKED, where=hidden)
    weights -= weights.max(-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(-1, keepdims=True)
    mixed = mx.array(weights.reshape(batch, groups, -1, length)) @ v
    return mixed.reshape(batch, heads, n, v.shape[-1])


def _is_known(mask: Any) -> bool:
    """Whether a mask says of each place if it is seen, the same for all heads."""
    import mlx.core as mx

    if not isinstance(mask, mx.array):
        return mask is None or mask == "causal"
    same_for_all = mask.ndim == 2 or (mask.ndim == 4 and mask.shape[1] == 1)
    return bool(mask.dtype == mx.bool_) and same_for_all


def _hidden(mask: Any, n: int, length: int) -> NDArray[np.bool_] | None:
    """Which places are not seen, in a shape that fits (batch, groups, heads, n, length)."""
    if mask is None:
        return None
    if isinstance(mask, str):
        return ~np.tri(n, length, length - n, dtype=bool)
    hidden = ~np.array(mask)
    return hidden[:, :, None] if hidden.ndim == 4 else hidden


def _logsumexp(slow: Callable[..., Any], a: Any, axis: Any = None, **more: Any) -> Any:
    """The logarithm of the sum of exponentials over the last axis."""
    import mlx.core as mx

    if a.dtype != mx.float32 or axis != -1 or more.keys() - {"keepdims"}:
        return slow(a, axis, **more)
    values = np.array(a)
    most = values.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        values -= most
        most += np.log(np.exp(values, out=values).sum(-1, keepdims=True))
    return mx.array(most if more.get("keepdims") else most[..., 0])


def _swiglu(slow: Callable[..., Any], gate: Any, x: Any) -> Any:
    """The gate of most models' MLP: x · gate · sigmoid(gate)."""
    import mlx.core as mx

    if gate.dtype != mx.float32 or x.dtype != mx.float32:
        return slow(gate, x)
    mx.eval(gate, x)
    values = np.asarray(gate)
    with np.errstate(over="ignore"):
        found = np.exp(-values)
    found += 1
    np.divide(values, found, out=found)
    found *= np.asarray(x)
    return mx.array(found)


@contextmanager
def small_caches() -> Iterator[None]:
    """Let caches of keys and values grow by few places at a time meanwhile, on a processor.

    Memory is short there, and full of weights in float32.
    """
    from mlx_lm.models.cache import BatchKVCache, KVCache

    before = {kind: kind.step for kind in (KVCache, BatchKVCache)}
    try:
        for kind in before if on_cpu() else ():
            kind.step = CACHE_STEP
        yield
    finally:
        for kind, step in before.items():
            kind.step = step
