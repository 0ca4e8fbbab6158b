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
            expected="the LoRA factors are trainable",
            fix="convert the layers to LoRA after freezing the model, and count again",
        ),
        "unfrozen": Symptom.error(
            "far more was trainable than LoRA factors have numbers",
            expected="a few percent with LoRA",
            fix="freeze the model before the layers are converted, and count what is trainable",
        ),
        "fewer-than-configured": Symptom.warning(
            "far less was trainable than the configuration asks for",
            fix="check which modules the keys match",
        ),
        "partly-saved": Symptom.error(
            "the file holds fewer numbers than the log says were trained",
            fix="save every trainable parameter: compare the file's names with "
            "tree_flatten(model.trainable_parameters())",
        ),
        "total-mismatch": Symptom.warning(
            "the log's model has another size than the base model",
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
        yield Sign(
            "none-trainable",
            f"The log says that none of {logged.total_millions:g} million parameters was "
            "trainable.",
            {"percent": 0.0, "total_millions": logged.total_millions},
        )
        return
    if config is not None and config.fine_tune_type == "full":
        raise NotApplicable("a full fine-tune trains whole weights")
    if config is None and log is not None and log.header.get("type", "").startswith("full"):
        raise NotApplicable("a full fine-tune trains whole weights")
    if logged is not None:
        count = _Count(logged.trainable_millions * 1e6, limits.rounding_millions * 1e6, "log")
        if base is not None:
            total = _Count(logged.total_millions * 1e6, limits.rounding_millions * 1e6, "log")
            yield from _total(total, base, limits)
    elif adapter is not None:
        count = _Count(float(adapter.parameter_count), 0.0, "adapter")
    else:
        raise Inconclusive("neither a log with the count nor an adapter was found")
    configured = (
        configured_parameters(config, base) if config is not None and base is not None else None
    )
    stored = adapter.lora_parameter_count if adapter is not None and adapter.modules else None
    if configured is not None or stored is not None:
        yield from _compared(count, _Expected(configured, stored), adapter, base, limits)
    elif logged is not None and logged.percent >= 100 * limits.whole:
        unsaid = "" if config is not None else ", and the log does not say whether that was meant"
        yield Sign(
            "unfrozen",
            f"{logged.percent:g}% of all parameters were trainable: the model itself was "
            f"trained{unsaid}.",
            {"percent": logged.percent, "trainable": count.numbers, "counted_in": "log"},
            severity=None if config is not None else Severity.WARNING,
        )
    else:
        raise Inconclusive("what LoRA should have cannot be told without its factors or the base")


@dataclass(frozen=True)
class _Count:
    """How many numbers were trainable, give or take how many, and what says so."""

    numbers: float
    slack: float
    counted_in: str

    def against(self, expected: int) -> dict[str, Measurement]:
        """What is measured where the count is not the expected one."""
        return {
            "trainable": self.numbers,
            "expected": expected,
            "ratio": self.numbers / expected,
            "counted_in": self.counted_in,
        }


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


def _total(logged: _Count, base: BaseModel, limits: Limits) -> Iterator[Sign]:
    if "text_config" in base.config or "vision_config" in base.config:
        # Only the language model of such a folder is loaded.
        return
    count, total = base.parameter_count, logged.numbers
    if count and abs(total - count) > limits.total * count + logged.slack:
        yield Sign(
            "total-mismatch",
            f"The log's model has {_millions(total)} parameters, and the base model "
            f"{_millions(count)}.",
            {"log": total, "base": count, "ratio": total / count},
            where=base.path.name,
            expected=f"about {_millions(count)}",
        )


def _compared(
    count: _Count,
    expected: _Expected,
    adapter: Adapter | None,
    base: BaseModel | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Too many, as configured but not all of them saved, or too few."""
    observed, most, least = count.numbers, expected.most, expected.least
    saved = adapter.parameter_count if adapter is not None else None
    in_file = saved is not None and saved >= observed - count.slack
    if observed > limits.excess * most + count.slack:
        whole = base is not None and observed >= limits.whole * base.parameter_count
        # Otherwise a file that lacks part of what was trained would look the same.
        certain = whole or in_file or None not in (expected.configured, expected.stored)
        yield Sign(
            "unfrozen",
            f"{_millions(observed)} parameters were trainable, {observed / most:.3g} times the "
            f"{_millions(most)} of {expected.of(most)}: the model itself was trained.",
            count.against(most),
            severity=None if certain else Severity.WARNING,
            expected=f"about {_millions(most)}",
        )
    elif count.counted_in == "adapter":
        # A file alone tells what was saved, not what was trained.
        return
    elif expected.configured is not None and abs(observed - expected.configured) <= count.slack:
        if adapter is not None and saved is not None and not in_file:
            yield Sign(
                "partly-saved",
                f"The log counts {_millions(observed)} trainable parameters, as the configured "
                f"modules have, and {adapter.path.name} holds {_millions(saved)} numbers: the "
                "rest of what was trained was not saved.",
                {"trainable": observed, "saved": saved, "share": saved / observed},
                where=adapter.path.name,
                expected=f"{_millions(observed)} numbers",
            )
    elif observed * limits.excess + count.slack < least:
        yield Sign(
            "fewer-than-configured",
            f"{_millions(observed)} parameters were trainable, and {expected.of(least)} have "
            f"{_millions(least)}.",
            count.against(least),
            expected=f"about {_millions(least)}",
        )


def _millions(count: float) -> str:
    millions = count / 1e6
    return f"{millions:,.3f} million" if millions >= 1.0 else f"{millions:.3g} million"
