"""Differences from a healthy run.

What it finds. How this run and a healthy one differ: other configuration values, a rate × scale
that is several times larger or smaller, and a loss that is higher at the same point.

Why it matters. What worked on the same model and data is better evidence than any guideline.

How it is measured. Configurations are compared key by key, paths and reporting left
out. Losses are compared at the iterations, or the epochs, that both logs report: medians over
the last third of these. Only with `--against RUN`.

When it is wrong. When the other run used another model or other data: then nothing
but the configuration can be compared.

What to do. Take over the healthy run's values one at a time, in the order in which they are named.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.other_runs import ReferenceRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom, Unsought

# Keys that change nothing that is learned, such as where and how often a run reports.
_IRRELEVANT = frozenset(
    {
        *("adapter_path", "config", "project_name", "report_to", "steps_per_report"),
        *("steps_per_eval", "save_every", "test", "test_batches", "train", "val_batches"),
        *("clear_cache_threshold", "optimizer_config", "trust_remote_code"),
    }
)
#: Least ratio of the two rates × scale, or its inverse: the best rates of one model differ by less
#: (sweeps of tinker-cookbook).
_STEP_RATIO = 3.0
#: Largest sound ratio of the two median losses: 1.5 times the first loss marks divergence, too.
_LOSS_RATIO = 1.5
#: Fewest reports that both logs have, for a median of the last third.
_SHARED_REPORTS = 3

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
    if (config is None or reference.config is None) and (log is None or reference.log is None):
        raise Inconclusive("the two runs have no kind of evidence in common")
    if config is not None and reference.config is not None:
        yield from _config(config, reference.config)
    if log is not None and reference.log is not None:
        yield from _loss(log, reference.log)


def _config(config: TrainingConfig, reference: TrainingConfig) -> Iterator[Sign]:
    ours, theirs = _flat(config.values), _flat(reference.values)
    keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if keys:
        changes = "; ".join(f"{key} {theirs.get(key)} -> {ours.get(key)}" for key in keys)
        yield Sign("config-differs", {"count": len(keys), "keys": tuple(keys), "changes": changes})
    step, healthy_step = _step(config), _step(reference)
    if step is None or healthy_step is None or not healthy_step > 0:
        return
    ratio = step / healthy_step
    if ratio > _STEP_RATIO or ratio < 1 / _STEP_RATIO:
        steps = {"step": step, "healthy_step": healthy_step, "ratio": ratio}
        healthy = {"healthy_rate": reference.learning_rate, "healthy_scale": reference.scale}
        yield Sign("step-larger" if ratio > 1 else "step-smaller", {**steps, **healthy})


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The stated values that matter to what is learned, by key; dots join nested keys."""
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
    losses, healthy_losses = log.main.get("train_loss"), reference.main.get("train_loss")
    if losses is None or healthy_losses is None:
        return
    units = {"iteration" if run.main.unit == "step" else run.main.unit for run in (log, reference)}
    if len(units) > 1:
        yield Unsought(("loss-higher",), "the log of one run counts epochs, and the other does not")
        return
    shared, ours, theirs = np.intersect1d(
        losses.iterations, healthy_losses.iterations, return_indices=True
    )
    if len(shared) < _SHARED_REPORTS:
        return
    third = len(shared) // 3
    loss = float(np.median(losses.values[ours][-third:]))
    healthy_loss = float(np.median(healthy_losses.values[theirs][-third:]))
    # A loss of NaN counts as higher.
    if healthy_loss > 0 and not loss / healthy_loss <= _LOSS_RATIO:
        figures: dict[str, Measurement] = {"loss": loss, "healthy_loss": healthy_loss}
        figures |= {"unit": log.main.unit, "iteration": int(shared[-1])}
        yield Sign("loss-higher", figures)
