"""Whether as many parameters were trainable as LoRA has.

What it finds. A run in which nothing was trainable; one in which far more was trainable
than its LoRA factors have numbers, so that the model itself was trained; one with far
fewer; a file that lacks part of what was trained; and a log whose model has another size
than the base model named.

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
from mlxdoctor.evidence.training_log import Trainable, TrainingLog
from mlxdoctor.finding import Finding, Measurement, Severity
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
        "none-trainable": "the log says that nothing was trainable",
        "unfrozen": "far more was trainable than LoRA factors have numbers",
        "fewer-than-configured": "far less was trainable than the configuration asks for",
        "partly-saved": "the file holds fewer numbers than the log says were trained",
        "total-mismatch": "the log's model has another size than the base model",
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
) -> Iterator[Finding]:
    """Count what was trainable, and what should have been."""
    trainable = log.trainable if log is not None else None
    if trainable is not None and trainable.trainable_millions == 0 and trainable.percent == 0:
        yield Finding(
            "trainable-ratio.none-trainable",
            Severity.ERROR,
            f"The log says that none of {trainable.total_millions:g} million parameters was "
            "trainable.",
            measured={"percent": 0.0, "total_millions": trainable.total_millions},
            expected="the LoRA factors are trainable",
            fix="convert the layers to LoRA after freezing the model, and count again",
        )
        return
    if config is not None and config.fine_tune_type == "full":
        raise NotApplicable("a full fine-tune trains whole weights")
    if trainable is None and adapter is None:
        raise Inconclusive("neither a log with the count nor an adapter was found")
    observed = (
        trainable.trainable_millions * 1e6
        if trainable is not None
        else float(adapter.parameter_count if adapter is not None else 0)
    )
    configured = (
        configured_parameters(config, base) if config is not None and base is not None else None
    )
    stored = adapter.lora_parameter_count if adapter is not None and adapter.modules else None
    if trainable is not None and base is not None:
        yield from _total(trainable.total_millions * 1e6, base, limits)
    if configured is None and stored is None:
        if trainable is not None and trainable.percent >= 100 * limits.whole:
            yield _most_of_the_model(trainable, observed)
            return
        raise Inconclusive("what LoRA should have cannot be told without its factors or the base")
    slack = limits.rounding_millions * 1e6 if trainable is not None else 0.0
    expected = _Expected(configured, stored)
    if observed > limits.excess * expected.most + slack:
        whole = base is not None and observed >= limits.whole * base.parameter_count
        # Otherwise a file that lacks part of what was trained would look the same.
        saved = adapter is not None and adapter.parameter_count >= observed - slack
        certain = whole or saved or (configured is not None and stored is not None)
        yield _unfrozen(observed, expected, trainable, certain=certain)
    elif trainable is None:
        # A file alone tells what was saved, not what was trained.
        return
    elif configured is not None and abs(observed - configured) <= slack:
        if adapter is not None and adapter.parameter_count < observed - slack:
            yield _partly_saved(observed, adapter)
    elif observed * limits.excess + slack < expected.least:
        yield Finding(
            "trainable-ratio.fewer-than-configured",
            Severity.WARNING,
            f"{observed / 1e6:,.3f} million parameters were trainable, and "
            f"{expected.of(expected.least)} have {expected.least / 1e6:,.3f} million.",
            measured=_counts(observed, expected.least, trainable),
            expected=f"about {expected.least / 1e6:,.3f} million",
            fix="check which modules the keys match",
        )


@dataclass(frozen=True)
class _Expected:
    """Numbers of the configured modules and of the file's factors, at least one of them known."""

    configured: int | None
    stored: int | None

    @property
    def most(self) -> int:
        return max(self.configured or 0, self.stored or 0)

    @property
    def least(self) -> int:
        # mlx-lm chooses keys that are not stated: the file shows which it took.
        return self.stored if self.stored is not None else self.configured or 0

    def of(self, count: int) -> str:
        """Whose numbers those are."""
        if count == self.stored:
            return "the LoRA factors in the adapter's file"
        return "the modules that were configured"


def _counts(observed: float, expected: int, trainable: Trainable | None) -> dict[str, Measurement]:
    return {
        "trainable": observed,
        "expected": expected,
        "ratio": observed / expected,
        "counted_in": "log" if trainable is not None else "adapter",
    }


def _most_of_the_model(trainable: Trainable, observed: float) -> Finding:
    return Finding(
        "trainable-ratio.unfrozen",
        Severity.ERROR,
        f"{trainable.percent:g}% of all parameters were trainable: the model itself was trained.",
        measured={"percent": trainable.percent, "trainable": observed, "counted_in": "log"},
        expected="a few percent with LoRA",
        fix="freeze the model before the layers are converted, and count what is trainable",
    )


def _unfrozen(
    observed: float, expected: _Expected, trainable: Trainable | None, *, certain: bool
) -> Finding:
    return Finding(
        "trainable-ratio.unfrozen",
        Severity.ERROR if certain else Severity.WARNING,
        f"{observed / 1e6:,.3f} million parameters were trainable, "
        f"{observed / expected.most:.3g} times the {expected.most / 1e6:,.3f} million of "
        f"{expected.of(expected.most)}: the model itself was trained.",
        measured=_counts(observed, expected.most, trainable),
        expected=f"about {expected.most / 1e6:,.3f} million",
        fix="freeze the model before the layers are converted, and count what is trainable",
    )


def _partly_saved(observed: float, adapter: Adapter) -> Finding:
    return Finding(
        "trainable-ratio.partly-saved",
        Severity.ERROR,
        f"The log counts {observed / 1e6:,.3f} million trainable parameters, as the configured "
        f"modules have, and {adapter.path.name} holds {adapter.parameter_count / 1e6:,.3f} "
        "million numbers: the rest of what was trained was not saved.",
        measured={
            "trainable": observed,
            "saved": adapter.parameter_count,
            "share": adapter.parameter_count / observed,
        },
        expected=f"{observed / 1e6:,.3f} million numbers",
        where=adapter.path.name,
        fix="save every trainable parameter: compare the file's names with "
        "tree_flatten(model.trainable_parameters())",
    )


def _total(total: float, base: BaseModel, limits: Limits) -> Iterator[Finding]:
    if "text_config" in base.config or "vision_config" in base.config:
        # Only the language model of such a folder is loaded.
        return
    count = base.parameter_count
    if count and abs(total / count - 1) > limits.total:
        yield Finding(
            "trainable-ratio.total-mismatch",
            Severity.WARNING,
            f"The log's model has {total / 1e6:,.3f} million parameters, and the base model "
            f"{count / 1e6:,.3f} million.",
            measured={"log": total, "base": count, "ratio": total / count},
            expected=f"about {count / 1e6:,.3f} million",
            where=base.path.name,
            fix="name the base model that the run was trained on",
        )
