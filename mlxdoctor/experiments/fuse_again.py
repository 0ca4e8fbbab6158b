"""A fused model: fused again at full precision, and compared with base plus adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.copies import copied
from mlxdoctor.experiments.shared.held_out import split_loss
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Limits, Ruling, undecided
from mlxdoctor.run import Run

_ROWS = "more validation rows (--data)"


@direct("fused-model-differs", "fused again at full precision")
def fuse_again(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Compare the fused model with base plus adapter, and with a fusion at full precision."""
    fused, adapter = run.files.tuned, run.files.adapter
    if fused is None:
        reason = "there is no fused model in the run's folder to compare"
        return undecided(reason, "the fused model")
    if adapter is None or adapter.suffix != ".safetensors":
        return undecided(
            "there is no adapter beside the fused model that could be fused again",
            "the adapter that was fused",
        )
    from mlxdoctor.models.load import load_local

    copied(run.files, adapter, folder / "adapter")
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed)
    label = "the fused model compared"

    def loss_of(model: Any, tokenizer: Any) -> float | None:
        return split_loss(lab, settings, model, tokenizer, label)

    model, tokenizer = load_local(Path(settings.model), folder / "adapter")
    tuned = loss_of(model, tokenizer)
    again = loss_of(_fused(model), tokenizer)
    saved = loss_of(*load_local(fused))
    if tuned is None or again is None or saved is None:
        return undecided("there are no validation rows to compare them on", _ROWS)
    return judged(tuned, again, saved)


def judged(tuned: float, again: float, saved: float) -> Ruling:
    """The verdict from three losses on the same rows, in nats a token.

    Args:
        tuned: of the base with the adapter.
        again: of the two fused again at full precision.
        saved: of the fused model as it was saved.
    """
    limits = Limits()
    same = limits.same_loss * tuned
    text = (
        f"on the validation rows base plus adapter have a loss of {tuned:.3f}, fused again at full "
        f"precision {again:.3f}, and the fused model as saved {saved:.3f}"
    )
    if abs(again - tuned) > same:
        return undecided(
            f"{text}: even at full precision fusing changes the loss", "base and adapter in float32"
        )
    if abs(saved - tuned) <= same:
        return Ruling("refuted", text)
    # Not greater: a fused model without a finite loss differs as well.
    if not saved <= tuned * (1 + limits.better):
        return Ruling("confirmed", text, 1.0)
    return undecided(f"{text}: it differs, but by little", _ROWS)


def _fused(model: Any) -> Any:
    from mlx.utils import tree_unflatten

    fused = [
        (name, module.fuse(dequantize=True))
        for name, module in model.named_modules()
        if hasattr(module, "fuse")
    ]
    model.update_modules(tree_unflatten(fused))
    return model
