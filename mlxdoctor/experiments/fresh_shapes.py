"""An adapter that fits another model: compared with one that is made on this base."""

from __future__ import annotations

from pathlib import Path

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Ruling, undecided
from mlxdoctor.run import Run


@direct("wrong-base-model", "one step of training, for the shapes", iterations=1)
def fresh_shapes(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Make one step on this base with the run's configuration, and compare the shapes."""
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None:
        reason = "there is no adapter, or no base to compare it with"
        return undecided(reason, "the adapter, and the base it is used with (--base)")
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed)
    lab.train(settings, "one step on this base")
    fresh = {one.name: (one.in_features, one.out_features) for one in Adapter.read(folder).modules}
    shared = [one for one in adapter.modules if one.name in fresh]
    other = [one for one in shared if fresh[one.name] != (one.in_features, one.out_features)]
    if not shared:
        reason = "no module of the adapter has the name of one of this base"
        return undecided(reason, "the base that the adapter was trained on (--base)")
    if not other:
        return Ruling("refuted", "an adapter trained on this base has the same shapes")
    one = other[0]
    return Ruling(
        "confirmed",
        f"an adapter trained here with the same configuration has other shapes: {one.name} is "
        f"{fresh[one.name][0]} × {fresh[one.name][1]}, and {one.in_features} × {one.out_features} "
        f"in the run's file ({len(other)} of {len(shared)} modules differ)",
        1.0,
    )
