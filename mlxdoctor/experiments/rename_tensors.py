"""An adapter that has no effect: loaded again, with its tensors named as the base's modules."""

from __future__ import annotations

import math
from pathlib import Path

from mlxdoctor.engines.text import words
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.copies import copied
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.observation import Observation, examined
from mlxdoctor.experiments.shared.rules import Ruling, undecided
from mlxdoctor.models.generations import Generations
from mlxdoctor.run import Run

#: Share of the base's loss that an adapter takes away which works. Both are of the same rows, so
#: that no two seeds differ; 105 of 107 sound runs of the real split take 0.024 or more.
BETTER = 0.02
#: Share of the base's loss by which a model may differ that is the base itself; by judgement:
#: the same sums in another order differ by less.
SAME = 1e-3


@direct("adapter-not-loaded", "the tensors renamed to fit the base")
def rename_tensors(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Load a copy of the adapter whose tensors are named as the base's modules are."""
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None or adapter.path.suffix != ".safetensors":
        reason = "there is no adapter file to rename the tensors of"
        return undecided(reason, "the adapter as a .safetensors file")
    names = renamed(adapter, base)
    if names is None:
        return undecided(
            "no renaming makes every tensor fit a module of the base by its shape",
            "the base that the adapter was trained on (--base)",
        )
    if not names:
        return _named_where_it_was_not(lab, run, adapter, folder)
    as_saved = copied(run.files, adapter.path, folder / "as-saved")
    fitted = copied(run.files, adapter.path, folder / "renamed", names)
    before = examined(as_saved, base=lab.recipe.base, data=lab.recipe.data)
    lab.keep_within_time("the adapter with its tensors renamed")
    after = examined(fitted, base=lab.recipe.base, data=lab.recipe.data)
    if _works(after) and (before.loss is None or before.loss >= (before.base_loss or math.inf)):
        return Ruling(
            "confirmed",
            f"with its {len(names)} tensors renamed in a copy the adapter works: the loss on "
            f"held-out answers is {after.loss:.3f}, the base's {after.base_loss:.3f}; as saved "
            "it has no effect",
            1.0,
        )
    if after.loss is None or after.base_loss is None:
        return undecided("no held-out answers say what the adapter does", "rows with answers")
    if abs(after.loss - after.base_loss) > SAME * after.base_loss:
        return undecided(
            "with its tensors renamed to fit, the adapter is applied, and the loss on held-out "
            f"answers is {after.loss:.3f}, the base's {after.base_loss:.3f}: that is no proof",
            "rows like those trained on (--data)",
        )
    return Ruling("refuted", "with its tensors renamed to fit, the adapter has no effect either")


def _named_where_it_was_not(lab: Laboratory, run: Run, adapter: Adapter, folder: Path) -> Ruling:
    """Load an adapter that fits, where the recorded answers were made without it."""
    fits = "every tensor already has the name of a module of the base"
    recorded = run.files.generations
    items = Generations.read(recorded).items if recorded is not None else ()
    if not items or any(words(one.tuned) != words(one.base or "") for one in items):
        return Ruling("refuted", fits)
    found = examined(
        copied(run.files, adapter.path, folder / "as-saved"),
        base=lab.recipe.base,
        data=lab.recipe.data,
    )
    if not _works(found):
        return Ruling("refuted", f"{fits}, and loaded here the adapter is no better than the base")
    return Ruling(
        "confirmed",
        f"loaded here the adapter works: the loss on held-out answers is {found.loss:.3f}, the "
        f"base's {found.base_loss:.3f}; yet all {len(items)} answers recorded as the tuned "
        "model's are those recorded as the base's",
        1.0,
    )


def _works(found: Observation) -> bool:
    """Whether the tuned model is better than the base on held-out answers."""
    if found.loss is None or found.base_loss is None:
        return False
    return found.loss < found.base_loss * (1 - BETTER)


def renamed(adapter: Adapter, base: BaseModel) -> dict[str, str] | None:
    """Tensor name -> the name that fits the base; None where a module has no place there.

    A wrapper's prefix is what differs: the longest end of the module's name that is the
    name, or the end of the name, of one module of the base with the same shape.
    """
    names: dict[str, str] = {}
    for module in adapter.modules:
        target = _target(module.name, (module.in_features, module.out_features), base)
        if target is None:
            return None
        for factor in (module.a, module.b, module.magnitude):
            if factor is not None and not factor.name.startswith(f"{target}."):
                names[factor.name] = f"{target}.{factor.name.rpartition('.')[2]}"
    return names


def _target(name: str, shape: tuple[int, int], base: BaseModel) -> str | None:
    parts = name.split(".")
    for start in range(len(parts)):
        end = ".".join(parts[start:])
        fitting = [
            one
            for one, size in base.linear_shapes.items()
            if (one == end or one.endswith(f".{end}")) and size == shape
        ]
        if len(fitting) == 1:
            return fitting[0]
    return None
