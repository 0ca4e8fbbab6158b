"""Another base than the adapter was trained on: by its shapes, or by the first validation."""

from __future__ import annotations

from pathlib import Path

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.reproduce.rerun import Laboratory
from mlxdoctor.reproduce.rules import Limits, Ruling, undecided
from mlxdoctor.run import Run


def first_validation(log: TrainingLog | None) -> float | None:
    """The validation loss that the log has before the first update, nats a token."""
    series = log.main.get("val_loss") if log is not None else None
    if series is None or not len(series) or int(series.iterations[0]) > 1:
        return None
    return float(series.values[0])


def fresh_shapes(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Make one step on this base with the run's configuration, and compare the shapes.

    Bases of one kind have the same shapes. Then the log tells: its first validation is of the
    base before any training, and made again on the right base it gives the same loss.
    """
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None:
        reason = "there is no adapter, or no base to compare it with"
        return undecided(reason, "the adapter, and the base it is used with (--base)")
    here = _first_loss(lab, folder, lab.recipe.base, "one step on this base")
    fresh = {one.name: (one.in_features, one.out_features) for one in Adapter.read(folder).modules}
    shared = [module for module in adapter.modules if module.name in fresh]
    other = [one for one in shared if fresh[one.name] != (one.in_features, one.out_features)]
    if not shared:
        reason = "no module of the adapter has the name of one of this base"
        return undecided(reason, "the base that the adapter was trained on (--base)")
    if other:
        module = other[0]
        rows, columns = fresh[module.name]
        return Ruling(
            "confirmed",
            "an adapter trained here with the same configuration has other shapes: "
            f"{module.name} is {rows} × {columns}, and {module.in_features} × "
            f"{module.out_features} in the run's file ({len(other)} of {len(shared)} modules "
            "differ)",
            1.0,
        )
    own, named = lab.recipe.named_base(run), None
    if own is not None and own != lab.recipe.base:
        named = _first_loss(lab, folder / "named", own, "one step on the base that the run names")
    return judge_same_shapes(first_validation(run.get(TrainingLog)), here, named)


def _first_loss(lab: Laboratory, folder: Path, base: Path, label: str) -> float | None:
    """The validation loss before the first update on a base, nats a token."""
    values = {**lab.recipe.values, "model": str(base)}
    result = lab.train(lab.recipe.settings(folder, 1, lab.recipe.seed, values), label)
    return result.validations[0].val_loss if result.validations else None


def judge_same_shapes(logged: float | None, here: float | None, named: float | None) -> Ruling:
    """The verdict where shapes tell nothing: by the validation before the first update.

    Args:
        logged: what the run's log has, nats a token; None where it has none.
        here: the same validation made on this base; None where there is none.
        named: likewise on the base that the run names; None where that is this one.
    """
    text = "an adapter trained on this base has the same shapes"
    if logged is None or here is None:
        return undecided(
            f"{text}, which bases of one kind have in common",
            "a log with the validation loss before the first update",
        )
    same = Limits().same_step
    losses = f"before the first update the log has a validation loss of {logged:.3f}"
    if abs(logged - here) > same:
        return undecided(
            f"{text}; {losses}, this base has {here:.3f}: it was another base, or other rows, or "
            "another loss",
            "the base that was trained on, whose folder is named with --base",
        )
    if named is not None and not abs(logged - named) <= same:
        return Ruling(
            "confirmed",
            f"{losses}, as the base named with --base has ({here:.3f}); the base that the run "
            f"names has {named:.3f}: the adapter was trained on the former",
            1.0,
        )
    return Ruling("refuted", f"{text}, and {losses}, as this base has ({here:.3f})")
