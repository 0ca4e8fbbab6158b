"""Whether as many parameters were trainable as LoRA has.

What it finds. A run in which nothing was trainable, or far more than its LoRA factors.

Why it matters. The line "Trainable parameters: 0.024% (1.704M/7241.732M)" is the first
thing that mlx-lm prints and the cheapest proof that LoRA was attached and the rest
frozen. A full model trained at a LoRA rate is destroyed in a few updates.

How it is measured. Expected is the larger of two counts: rank × (inputs + outputs) over the modules
that the configuration names, and the numbers of the LoRA factors in the adapter's file.
Observed is what the log prints. A quantised weight counts as the matrix that it stands for, as in
mlx-lm.

When it is wrong. Trainers count differently: some count the factors in the total, some
count packed words of quantised models. The keys that mlx-lm chooses by itself depend on
the architecture: if only one of the two counts is known, too many trainable parameters
are a warning, unless the file holds them all or they are half of the model.

What to do. Call `model.freeze()` before the layers are converted, and compare
`tree_flatten(model.trainable_parameters())` with the list of factors.
"""

from collections.abc import Iterator, Sequence

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.weights.lora_targets import configured_parameters

#: Least ratio of trainable to expected parameters for a sign: 1.00 in 21 runs of mlx-lm.
_EXCESS = 1.5
#: Share of the base model's parameters that LoRA does not reach at usual ranks: at most 0.12 in
#: the same runs.
_MODEL_SHARE = 0.5
#: Nats of a guess among 8,100 tokens, near which untrained weights begin.
UNTRAINED = 9.0
#: Parameters by which a logged count may be rounded: mlx-lm prints three decimals of a million.
_ROUNDING = 1e3


@check(
    codes={
        "none-trainable": Symptom.error(
            "the log says that nothing was trainable",
            says="The log says that [none of {total_millions:g} million parameters|no parameter] "
            "was trainable.",
            expected="the LoRA factors are trainable",
            fix="convert the layers to LoRA after freezing the model, and count again",
        ),
        "unfrozen": Symptom.error(
            "far more was trainable than LoRA factors have numbers",
            says="[{trainable_millions:,.3f} million parameters were trainable, {ratio:.3g} times "
            "the {expected_millions:,.3f} million of {whose}|{percent:g}% of all parameters were "
            "trainable]: the model itself was trained[, and {unsaid}].",
            expected="[about {expected_millions:,.3f} million|a few percent with LoRA]",
            fix="freeze the model before the layers are converted, and count what is trainable",
        ),
    },
)
def trainable_ratio(
    log: TrainingLog,
    config: TrainingConfig | None,
    adapter: Adapter | None,
    base: BaseModel | None,
) -> Iterator[Sign]:
    logged = log.notes.trainable
    if logged is None:
        raise Inconclusive("the log does not count what was trainable")
    if logged.trainable_millions == 0 and logged.percent == 0:
        yield Sign("none-trainable", {"total_millions": logged.total_millions})
        return
    stated = config.fine_tune_type if config is not None else log.notes.header.get("type", "")
    if (stated or "").startswith("full") or "whole" in log.notes.header:
        raise NotApplicable("a full fine-tune trains whole weights")
    trainable = logged.trainable_millions * 1e6
    configured = (
        configured_parameters(config, base) if config is not None and base is not None else None
    )
    modules = adapter.modules if adapter is not None else ()
    stored = sum(module.parameter_count for module in modules) or None
    expected = max(configured or 0, stored or 0)
    figures: dict[str, Measurement] = {"trainable": trainable}
    if configured is None and stored is None:
        if logged.percent < 100 * _MODEL_SHARE:
            raise Inconclusive(
                "what LoRA should have cannot be told without its factors or the base"
            )
        if log.notes.failures and not log.main.reports:
            raise Inconclusive("the run broke off before anything was trained")
        unsaid = None if config is not None else "the log does not say whether that was meant"
        figures |= {"percent": logged.percent, "unsaid": unsaid}
        # What begins at a blind guess has no weights yet that should be frozen.
        losses = log.main.finite("train_loss")
        is_new = len(losses) > 0 and log.main.shows_start and losses.facts.first >= UNTRAINED
        severity = Severity.INFO if is_new else Severity.WARNING
        yield Sign("unfrozen", figures, severity=severity if unsaid else None)
        return
    saved_all = adapter is not None and adapter.parameter_count >= trainable - _ROUNDING
    if trainable > _EXCESS * expected + _ROUNDING:
        is_model = base is not None and trainable >= _MODEL_SHARE * base.parameter_count
        if not (is_model or saved_all) and _is_of_another_rank(trainable, modules):
            raise Inconclusive("the file has the factors that were trained, at a lower rank")
        # With only one of the two counts, the excess may be LoRA factors that were not saved.
        is_certain = is_model or saved_all or None not in (configured, stored)
        whose = "the LoRA factors in the file" if expected == stored else "what was configured"
        millions = {"trainable_millions": trainable / 1e6, "expected_millions": expected / 1e6}
        figures |= {"expected": expected, "ratio": trainable / expected, "whose": whose, **millions}
        yield Sign("unfrozen", figures, severity=None if is_certain else Severity.WARNING)


def _is_of_another_rank(trainable: float, modules: Sequence[LoraModule]) -> bool:
    """Whether these modules have as many numbers as were trained, at a rank above the file's."""
    ranks = {module.rank for module in modules}
    if len(ranks) != 1:
        return False
    per_rank = sum(module.parameter_count for module in modules) / ranks.pop()
    off = abs(trainable - round(trainable / per_rank) * per_rank)
    return off <= _ROUNDING / 2 < per_rank / 4
