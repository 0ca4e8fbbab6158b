"""A figure that was reported: measured again, without and with the adapter."""

from __future__ import annotations

import math
from pathlib import Path

from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.copies import copied
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Limits, Ruling, undecided
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
        reason = "there is no reported loss, or no adapter to evaluate"
        return undecided(reason, "a reported loss or perplexity (JSON), and the adapter")
    from mlxdoctor.models.load import load_local
    from mlxdoctor.train.masked_loss import LossFunction, evaluate, exact_loss, parity_loss
    from mlxdoctor.train.parts import parts_of
    from mlxdoctor.train.token_rows import TokenRows

    copied(run.files, adapter, folder)
    said = float(reported[0].loss or math.nan)
    found: dict[tuple[bool, LossFunction], list[float]] = {}
    # One model in memory at a time, each loaded once; the rows are the same for both.
    rows: dict[bool, TokenRows] = {}
    for path in (None, folder):
        model, tokenizer = load_local(lab.recipe.base, path)
        for masks_prompt in (True, False):
            values = {**lab.recipe.values, "mask_prompt": masks_prompt}
            settings = lab.recipe.settings(folder, 1, lab.recipe.seed, values)
            parts = parts_of(settings)
            if masks_prompt not in rows:
                rows[masks_prompt] = parts.encode(settings, tokenizer)
            known = rows[masks_prompt]
            split = known.test if reported[0].split == "test" else known.valid
            if not split:
                reason = "the split that was evaluated is not here"
                return undecided(reason, "the rows that were evaluated (--data)")
            for loss_of in (exact_loss, parity_loss):
                batches = parts.batches(settings).evaluation(split, -1)
                batches = lab.within_time(batches, "base and adapter evaluated again")
                losses = found.setdefault((masks_prompt, loss_of), [])
                losses.append(evaluate(model, batches, loss_of))
    base, tuned = min(found.values(), key=lambda losses: min(abs(one - said) for one in losses))
    return _judged(said, base, tuned)


def _judged(said: float, base: float, tuned: float) -> Ruling:
    limit = Limits().same_loss * max(said, 1e-9)
    text = (
        f"reported is a loss of {said:.3f}; the base has {base:.3f}, with the adapter {tuned:.3f}"
    )
    if abs(said - base) <= limit < abs(said - tuned):
        return Ruling("confirmed", f"evaluated again: {text}", 1.0)
    if abs(said - tuned) <= limit:
        return Ruling("refuted", f"evaluated again: {text}")
    return undecided(
        f"evaluated again: {text}, which is neither", "how the figure was measured, and on what"
    )
