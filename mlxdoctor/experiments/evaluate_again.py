"""A figure that was reported: measured again, without and with the adapter."""

from __future__ import annotations

import math
from pathlib import Path

from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.copies import copied
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Limits, Ruling
from mlxdoctor.run import Run


@direct("evaluated-without-adapter", "evaluated again, without and with the adapter")
def evaluate_again(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Evaluate base and tuned model on the split that the reported figure is of.

    Nobody recorded how the figure was made: with the prompt in the loss or without it, and
    with mlx-lm's mask or the correct one. The way that comes closest is taken.
    """
    metrics, adapter = run.get(ReportedMetrics), run.files.adapter
    reported = [one for one in (metrics.losses if metrics else ()) if one.loss is not None]
    if not reported or adapter is None:
        return Ruling("undecided", "there is no reported loss, or no adapter to evaluate")
    from mlxdoctor.measure.loading import load_local
    from mlxdoctor.train.batches import Worker
    from mlxdoctor.train.masked_loss import evaluate, exact_loss, parity_loss
    from mlxdoctor.train.parts import parts_of

    copied(run.files, adapter, folder)
    said = float(reported[0].loss or math.nan)
    closest: tuple[float, float, float] | None = None
    for masks_prompt in (True, False):
        values = {**lab.recipe.values, "mask_prompt": masks_prompt}
        settings = lab.recipe.settings(folder, 1, lab.recipe.seed, values)
        for loss_of in (exact_loss, parity_loss):
            losses = []
            for path in (None, folder):
                model, tokenizer = load_local(Path(settings.model), path)
                parts = parts_of(settings)
                rows = parts.encode(settings, tokenizer)
                split = rows.test if reported[0].split == "test" else rows.valid
                if not split:
                    return Ruling("undecided", "the split that was evaluated is not here")
                batches = parts.batches(settings, Worker()).evaluation(split, -1)
                batches = lab.within_time(batches, "base and adapter evaluated again")
                losses.append(evaluate(model, batches, loss_of))
            off = min(abs(one - said) for one in losses)
            if closest is None or off < closest[0]:
                closest = (off, losses[0], losses[1])
    if closest is None:
        return Ruling("undecided", "nothing could be evaluated")
    return _judged(said, *closest[1:])


def _judged(said: float, base: float, tuned: float) -> Ruling:
    limit = Limits().same_loss * max(said, 1e-9)
    text = (
        f"reported is a loss of {said:.3f}; the base has {base:.3f}, with the adapter {tuned:.3f}"
    )
    if abs(said - base) <= limit < abs(said - tuned):
        return Ruling("confirmed", f"evaluated again: {text}", 1.0)
    if abs(said - tuned) <= limit:
        return Ruling("refuted", f"evaluated again: {text}")
    return Ruling("undecided", f"evaluated again: {text}, which is neither")
