"""The canonical name of a metric, whatever a trainer calls it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


def _table(text: str) -> dict[str, tuple[str, ...]]:
    """Name -> aliases, from lines `name: alias alias ...`; an indented line goes on."""
    entries = [line.partition(":") for line in re.sub(r"\n\s+", " ", text.strip()).splitlines()]
    return {name: tuple(aliases.split()) for name, _, aliases in entries}


#: Canonical name -> what else it is called.
CANONICAL = _table(
    """
train_loss: loss training_loss train_train_loss train_loss_history
val_loss: eval_loss valid_loss validation_loss val_val_loss eval_eval_loss
learning_rate: lr train_lr train_learning_rate current_lr last_lr
grad_norm: gradnorm gradient_norm grad_l2 train_grad_norm gnorm grad g_norm global_norm
    global_grad_norm total_grad_norm gradient
tokens_per_second: tokens_sec tok_sec tok_s tokens_s toks_sec toks_s token_s tps
    train_tokens_per_second tokens_per_sec
iterations_per_second: it_sec it_s its_sec its_s iter_s iters_s iter_sec iters_sec steps_s
    steps_sec train_iterations_per_second
seconds_per_iteration: s_it sec_it s_iter sec_iter s_step sec_step
trained_tokens: trained_tok tokens num_tokens num_input_tokens_seen tokens_trained
    train_trained_tokens
peak_memory_gb: peak_mem peak peak_memory memory mem train_peak_memory
val_seconds: val_took val_time eval_runtime val_val_time
skipped: skipped_batches skipped_steps
epoch: train_epoch
"""
)
#: What stands in where a row has no metric of the first name, best first.
STAND_INS = _table(
    """
train_loss: tr_loss trn_loss loss_train loss_training train_ce train_nll train_loss_step
    loss_step batch_loss step_loss iter_loss current_loss cur_loss lm_loss ce_loss
    cross_entropy_loss cross_entropy xent ce nll nll_loss total_loss avg_loss average_loss
    mean_loss loss_avg loss_mean avg_train_loss average_train_loss average_training_loss
    mean_train_loss train_avg_loss train_loss_epoch train_loss_avg train_average_loss epoch_loss
    running_loss smoothed_loss smooth_loss loss_smooth ema_loss loss_ema
val_loss: loss_val loss_valid loss_validation loss_eval dev_loss vloss validate_loss
    evaluation_loss heldout_loss held_out_loss val_ce valid_ce eval_ce val_nll valid_nll
    eval_nll val_cross_entropy avg_val_loss average_val_loss mean_val_loss avg_validation_loss
    average_validation_loss mean_validation_loss avg_eval_loss average_eval_loss val_avg_loss
    val_average_loss val_mean_loss val_loss_avg val_loss_mean eval_avg_loss eval_loss_avg
    val_loss_epoch val_loss_step val
grad_norm: norm total_norm grad_norm_l2
"""
)
_ALIASES = {alias: name for name, aliases in CANONICAL.items() for alias in (*aliases, name)}

#: Names of the column that counts updates, best first.
STEPS = ("iteration", "iter", "it", "global_step", "train_global_step", "step", "steps", "iters")

#: Keys of a trainer's closing summary, which repeats names with another meaning.
SUMMARY_KEYS = frozenset(("train_runtime", "total_flos", "train_samples_per_second"))

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
    """Canonical names without repeats: a second `train_loss` keeps its own name.

    Where none is `train_loss`, the best of its `STAND_INS` is, `avg_loss` say.
    """
    seen: set[str] = set()
    result: list[str | None] = []
    for name, raw in zip(names, own, strict=True):
        chosen = snake_case(raw) if name in seen else name
        result.append(None if chosen is None or chosen in seen else chosen)
        if result[-1] is not None:
            seen.add(result[-1])
    for name, others in STAND_INS.items():
        best = next((one for one in others if one in seen), None) if name not in seen else None
        if best is not None:
            result[result.index(best)] = name
    return tuple(result)
