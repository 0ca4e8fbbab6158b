"""Differences from a healthy run.

What it finds. Where this run and a healthy one part: configuration keys that differ,
a rate × scale that is larger, and a loss that is higher at the same point.

Why it matters. A run that went well on the same model and data is the best yardstick
there is: it knows nothing of guidelines, only of what worked.

How it is measured. Configurations are compared key by key, paths and reporting left
out. Losses are compared at the iterations, or the epochs, that both logs report: medians over
the last third of these. Only with `--against RUN`.

When it is wrong. When the other run used another model or other data: then nothing
but the configuration can be compared.

What to do. Take over the healthy run's values one at a time, the ones named first first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.other_runs import ReferenceRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom, Unsought

# Where a run was written to and how often it spoke changes nothing that is learned.
_IRRELEVANT = frozenset(
    {
        *("adapter_path", "config", "project_name", "report_to", "steps_per_report"),
        *("steps_per_eval", "save_every", "test", "test_batches", "train", "val_batches"),
        *("clear_cache_threshold", "optimizer_config", "trust_remote_code"),
    }
)


#: Times the healthy run's rate × scale: the best rates of one model differ by less (sweeps of
#: tinker-cookbook).
STEP_RATIO = 3.0
#: Times the healthy run's median loss: an end over 1.5 times the start marks divergence
#: (REFERENCES, four rules).
LOSS_RATIO = 1.5
#: Reports that both logs need: the least for a median of the last third.
SHARED_REPORTS = 3


_STEP = Symptom.warning(
    "rate × scale is another than the healthy run's, several times over",
    "within a factor of 3",
    "Set the learning rate to {healthy_rate:g} and the scale to {healthy_scale:g}.",
    says="Rate × scale is {step:.3g}, {ratio:.3g} times that of the healthy run "
    "({healthy_step:.3g}).",
)


@check(
    codes={
        "config-differs": Symptom.info(
            "the configuration differs from the healthy run's",
            says="{count:* configuration key} differ from the healthy run's: {changes}.",
        ),
        "step-larger": _STEP,
        "step-smaller": _STEP,
        "loss-higher": Symptom.warning(
            "the loss is well above the healthy run's at the same point",
            "at most 1.5 times the healthy run's",
            says="The loss up to {unit} {iteration} is {loss:.3f}, where the healthy run was at "
            "{healthy_loss:.3f}.",
        ),
    },
)
def comparison(
    reference: ReferenceRun,
    config: TrainingConfig | None,
    log: TrainingLog | None,
) -> Iterator[Sign | Unsought]:
    """Compare configuration and loss with those of a healthy run."""
    compared = False
    if config is not None and reference.config is not None:
        compared = True
        yield from _config(config, reference.config)
    if log is not None and reference.log is not None:
        compared = True
        yield from _loss(log, reference.log)
    if not compared:
        raise Inconclusive("the two runs have no kind of evidence in common")


def _config(config: TrainingConfig, reference: TrainingConfig) -> Iterator[Sign]:
    here, there = _flat(config.values), _flat(reference.values)
    keys = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
    if keys:
        listed = "; ".join(f"{key} {there.get(key)} -> {here.get(key)}" for key in keys)
        yield Sign("config-differs", {"count": len(keys), "keys": tuple(keys), "changes": listed})
    step, usual = _step(config), _step(reference)
    if step is None or usual is None or not usual > 0:
        return
    ratio = step / usual
    if ratio > STEP_RATIO or ratio < 1 / STEP_RATIO:
        yield Sign(
            "step-larger" if ratio > 1 else "step-smaller",
            {
                "step": step,
                "healthy_step": usual,
                "ratio": ratio,
                "healthy_rate": reference.learning_rate,
                "healthy_scale": reference.scale,
            },
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What is stated and matters to what is learned, by its place."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name not in _IRRELEVANT and value is not None:
            flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def _step(config: TrainingConfig) -> float | None:
    rate, scale = config.learning_rate, config.scale
    return None if rate is None or scale is None else rate * scale


def _loss(log: TrainingLog, reference: TrainingLog) -> Iterator[Sign | Unsought]:
    here, there = log.main.get("train_loss"), reference.main.get("train_loss")
    if here is None or there is None:
        return
    units = {"iteration" if run.main.unit == "step" else run.main.unit for run in (log, reference)}
    if len(units) > 1:
        yield Unsought(("loss-higher",), "the log of one run counts epochs, and the other does not")
        return
    shared, *places = np.intersect1d(here.iterations, there.iterations, return_indices=True)
    if len(shared) < SHARED_REPORTS:
        return
    last = -max(1, len(shared) // 3)
    ours, theirs = (
        float(np.median(series.values[place][last:]))
        for series, place in zip((here, there), places, strict=True)
    )
    # A NaN is above every loss.
    if theirs > 0 and not ours / theirs <= LOSS_RATIO:
        yield Sign(
            "loss-higher",
            {
                "loss": ours,
                "healthy_loss": theirs,
                "unit": log.main.unit,
                "iteration": int(shared[-1]),
            },
        )
