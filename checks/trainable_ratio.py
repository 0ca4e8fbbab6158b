"""Whether as many parameters were trainable as LoRA has.

What it finds. A run in which nothing was trainable; one in which far more was trainable
than its LoRA factors have numbers, so that the model itself was trained; a file that
lacks part of what was trained; and a log whose model has another size than the base
model named.

Why it matters. The line "Trainable parameters: 0.024% (1.704M/7241.732M)" is the first
thing that mlx-lm prints and the cheapest proof that LoRA was attached and the rest
frozen. A full model trained at a LoRA rate is destroyed in a few updates.

How it is measured. Expected are rank × (inputs + outputs) over the modules that the
configuration names, and the factors found in the adapter's file, the larger of the two.
Observed is what the log prints, or else all numbers in the file. Where the log's count
is that of the configured modules to the last printed digit, they were all trained, and
the file must hold as many. Quantised weights are counted as what they stand for, as
mlx-lm does.

When it is wrong. Trainers count differently: some count the factors in the total, some
count packed words of quantised models. The keys that mlx-lm chooses by itself depend on
the architecture, so that with one of the two expectations alone a warning is given,
unless the file holds all that was trained, or that is half of the model.

What to do. Call `model.freeze()` before the layers are converted, and compare
`tree_flatten(model.trainable_parameters())` with the list of factors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.weights.lora_targets import configured_parameters


@dataclass(frozen=True)
class Limits:
    """Thresholds of `trainable-ratio`."""

    excess: float = limit(
        1.5,
        unit="trainable numbers over expected ones",
        source="both are counts: what is left is the rounding of the log's three decimals",
        false_alarms="0 of 21 runs of mlx-lm, all of which have a ratio of 1.00",
    )
    whole: float = limit(
        0.5,
        unit="trainable numbers over those of the base model",
        source="half of a model is more than its layers' LoRA has at any usual rank",
        false_alarms="0 of 21 runs of mlx-lm, which reach 0.12",
    )
    rounding_millions: float = limit(
        0.001, unit="millions", source="mlx-lm prints three decimals of a million"
    )
    total: float = limit(
        0.05,
        unit="relative difference of two totals",
        source="more than biases, norms and a tied head add up to in the models of mlx-lm",
        false_alarms="0 of 21 runs of mlx-lm",
    )


@check(
    codes={
        "none-trainable": Symptom.error(
            "the log says that nothing was trainable",
            says="The log says that none of {total_millions:g} million parameters was trainable.",
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
        "partly-saved": Symptom.error(
            "the file holds fewer numbers than the log says were trained",
            says="The log counts {trainable:,.0f} trainable parameters, as the configured modules "
            "have, and {where} holds {saved:,} numbers: the rest of what was trained was not "
            "saved.",
            expected="{trainable:,.0f} numbers",
            fix="save every trainable parameter: compare the file's names with "
            "tree_flatten(model.trainable_parameters())",
        ),
        "total-mismatch": Symptom.warning(
            "the log's model has another size than the base model",
            says="The log's model has {log:,.0f} parameters, and the base model {base:,}.",
            expected="about {base:,}",
            fix="name the base model that the run was trained on",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def trainable_ratio(
    log: TrainingLog | None,
    config: TrainingConfig | None,
    adapter: Adapter | None,
    base: BaseModel | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Count what was trainable, and what should have been."""
    logged = log.trainable if log is not None else None
    if logged is not None and logged.trainable_millions == 0 and logged.percent == 0:
        measured = {"percent": 0.0, "total_millions": logged.total_millions}
        yield Sign("none-trainable", measured)
        return
    stated = config.fine_tune_type if config is not None else None
    if stated == "full" or (
        config is None and log is not None and log.header.get("type", "").startswith("full")
    ):
        raise NotApplicable("a full fine-tune trains whole weights")
    slack = limits.rounding_millions * 1e6
    if logged is not None:
        trainable = logged.trainable_millions * 1e6
        if base is not None:
            yield from _total(logged.total_millions * 1e6, slack, base, limits)
    elif adapter is not None:
        trainable, slack = float(adapter.parameter_count), 0.0
    else:
        raise Inconclusive("neither a log with the count nor an adapter was found")
    configured = (
        configured_parameters(config, base) if config is not None and base is not None else None
    )
    stored = adapter.lora_parameter_count if adapter is not None and adapter.modules else None
    if configured is None and stored is None:
        if logged is None or logged.percent < 100 * limits.whole:
            why = "what LoRA should have cannot be told without its factors or the base"
            raise Inconclusive(why)
        unsaid = None if config is not None else "the log does not say whether that was meant"
        severity = Severity.WARNING if unsaid else None
        figures: dict[str, Measurement] = {
            "percent": logged.percent,
            "trainable": trainable,
            "counted_in": "log",
            "unsaid": unsaid,
        }
        yield Sign("unfrozen", figures, severity=severity)
        return
    most = max(configured or 0, stored or 0)
    saved = adapter.parameter_count if adapter is not None else None
    in_file = saved is not None and saved >= trainable - slack
    if trainable > limits.excess * most + slack:
        whole = base is not None and trainable >= limits.whole * base.parameter_count
        # Otherwise a file that lacks part of what was trained would look the same.
        certain = whole or in_file or None not in (configured, stored)
        is_of_file = most == stored
        yield Sign(
            "unfrozen",
            {
                "trainable": trainable,
                "expected": most,
                "ratio": trainable / most,
                "counted_in": "log" if logged is not None else "adapter",
                "trainable_millions": trainable / 1e6,
                "expected_millions": most / 1e6,
                "whose": "the LoRA factors in the file" if is_of_file else "what was configured",
            },
            severity=None if certain else Severity.WARNING,
        )
    elif (
        logged is not None
        and configured is not None
        and abs(trainable - configured) <= slack
        and adapter is not None
        and not in_file
    ):
        figures = {
            "trainable": trainable,
            "saved": adapter.parameter_count,
            "share": adapter.parameter_count / trainable,
        }
        yield Sign("partly-saved", figures, where=adapter.path.name)


def _total(total: float, slack: float, base: BaseModel, limits: Limits) -> Iterator[Sign]:
    if "text_config" in base.config or "vision_config" in base.config:
        # Only the language model of such a folder is loaded.
        return
    count = base.parameter_count
    if count and abs(total - count) > limits.total * count + slack:
        measured = {"log": total, "base": count, "ratio": total / count}
        yield Sign("total-mismatch", measured, where=base.path.name)
