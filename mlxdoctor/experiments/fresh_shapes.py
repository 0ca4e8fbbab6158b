"""An adapter that fits another model: compared with one that is made on this base.

Bases of one kind have the same shapes. Then the log tells: its first validation is of the base
before any training, and made again on the right base it gives the same loss.
"""

from __future__ import annotations

from pathlib import Path

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.run_files import resolve
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Limits, Ruling, undecided
from mlxdoctor.run import Run


@direct("wrong-base-model", "one step of training, for the shapes", iterations=1)
def fresh_shapes(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Make one step on this base with the run's configuration, and compare the shapes."""
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None:
        reason = "there is no adapter, or no base to compare it with"
        return undecided(reason, "the adapter, and the base it is used with (--base)")
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed)
    result = lab.train(settings, "one step on this base")
    fresh = {one.name: (one.in_features, one.out_features) for one in Adapter.read(folder).modules}
    shared = [one for one in adapter.modules if one.name in fresh]
    other = [one for one in shared if fresh[one.name] != (one.in_features, one.out_features)]
    if not shared:
        reason = "no module of the adapter has the name of one of this base"
        return undecided(reason, "the base that the adapter was trained on (--base)")
    if not other:
        given = result.validations[0].val_loss if result.validations else None
        return same_shapes(run.get(TrainingLog), given, _of_the_named(lab, run, folder))
    one = other[0]
    return Ruling(
        "confirmed",
        f"an adapter trained here with the same configuration has other shapes: {one.name} is "
        f"{fresh[one.name][0]} × {fresh[one.name][1]}, and {one.in_features} × {one.out_features} "
        f"in the run's file ({len(other)} of {len(shared)} modules differ)",
        1.0,
    )


def _of_the_named(lab: Laboratory, run: Run, folder: Path) -> float | None:
    """The first validation on the base that the run names; None where that is the one used."""
    named = lab.recipe.config.model
    own = resolve(named, run.files.roots, model=True) if named is not None else None
    if own is None or own.resolve() == lab.recipe.base:
        return None
    values = {**lab.recipe.values, "model": str(own.resolve())}
    settings = lab.recipe.settings(folder / "named", 1, lab.recipe.seed, values)
    result = lab.train(settings, "one step on the base that the run names")
    return result.validations[0].val_loss if result.validations else None


def same_shapes(log: TrainingLog | None, here: float | None, named: float | None) -> Ruling:
    """The verdict where shapes tell nothing: by the validation before the first update.

    Args:
        log: of the run.
        here: the same validation made on this base, nats a token; None where there is none.
        named: likewise on the base that the run names; None where that is this one.
    """
    text = "an adapter trained on this base has the same shapes"
    series = log.main.get("val_loss") if log is not None else None
    is_first = series is not None and len(series) and int(series.iterations[0]) <= 1
    if series is None or not is_first or here is None:
        return undecided(
            f"{text}, which bases of one kind have in common",
            "a log with the validation loss before the first update",
        )
    recorded, same = float(series.values[0]), Limits().same_step
    losses = f"before the first update the log has a validation loss of {recorded:.3f}"
    if abs(recorded - here) > same:
        return undecided(
            f"{text}; {losses}, this base has {here:.3f}: it was another base, or other rows, or "
            "another loss",
            "the base that was trained on, whose folder is named with --base",
        )
    if named is not None and not abs(recorded - named) <= same:
        return Ruling(
            "confirmed",
            f"{losses}, as the base named with --base has ({here:.3f}); the base that the run "
            f"names has {named:.3f}: the adapter was trained on the former",
            1.0,
        )
    return Ruling("refuted", f"{text}, and {losses}, as this base has ({here:.3f})")
