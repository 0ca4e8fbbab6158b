"""The canonical name of a metric, whatever a trainer calls it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

CANONICAL: dict[str, tuple[str, ...]] = {
    "train_loss": ("loss", "training_loss", "train_train_loss"),
    "val_loss": ("eval_loss", "valid_loss", "validation_loss", "val_val_loss", "eval_eval_loss"),
    "learning_rate": ("lr", "train_lr", "train_learning_rate"),
    "grad_norm": ("gradnorm", "gradient_norm", "grad_l2", "train_grad_norm", "gnorm", "grad"),
    "tokens_per_second": (
        *("tokens_sec", "tok_sec", "tok_s", "tokens_s", "toks_sec", "tps"),
        *("train_tokens_per_second", "tokens_per_sec"),
    ),
    "iterations_per_second": ("it_sec", "it_s", "its_sec", "train_iterations_per_second"),
    "trained_tokens": (
        *("trained_tok", "tokens", "num_tokens", "num_input_tokens_seen", "tokens_trained"),
        "train_trained_tokens",
    ),
    "peak_memory_gb": ("peak_mem", "peak", "peak_memory", "memory", "mem", "train_peak_memory"),
    "val_seconds": ("val_took", "val_time", "eval_runtime", "val_val_time"),
    "skipped": ("skipped_batches", "skipped_steps"),
    "epoch": ("train_epoch",),
}
_ALIASES = {alias: name for name, aliases in CANONICAL.items() for alias in (*aliases, name)}

#: Names of the column that counts updates, best first.
STEPS = ("iteration", "iter", "it", "global_step", "train_global_step", "step", "steps", "iters")

#: A metric a row must hold at least one of to be a report on training.
_METRIC = re.compile(r"(?:^|_)(?:loss|reward|rewards|kl|perplexity|ppl)(?:_|$)")

_SYMBOLS = str.maketrans({"μ": "mean", "µ": "mean", "σ": "std"})


@lru_cache(maxsize=4096)
def snake_case(text: str) -> str:
    """`Tokens/sec` -> `tokens_sec`, `Val chosen reward` -> `val_chosen_reward`."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text.translate(_SYMBOLS))
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def canonical(text: str) -> str:
    """The canonical name of a metric, or its own in snake case."""
    name = snake_case(text)
    return _ALIASES.get(name, name)


def is_report(names: Iterable[str]) -> bool:
    """Whether a row with these canonical names reports on training."""
    return any(name == "grad_norm" or _METRIC.search(name) for name in names)


def unique(names: Iterable[str | None], own: Iterable[str]) -> tuple[str | None, ...]:
    """Canonical names without repeats: a second `train_loss` keeps its own name."""
    seen: set[str] = set()
    result: list[str | None] = []
    for name, raw in zip(names, own, strict=True):
        chosen = snake_case(raw) if name in seen else name
        result.append(None if chosen is None or chosen in seen else chosen)
        if result[-1] is not None:
            seen.add(result[-1])
    return tuple(result)
