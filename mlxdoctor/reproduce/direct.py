"""What settles a cause without a rerun: what diagnosis measured, and an adapter loaded rightly."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from safetensors.numpy import load_file, save_file

from mlxdoctor.causes import Cause
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.finding import Severity
from mlxdoctor.reproduce.bench import Failure
from mlxdoctor.reproduce.observe import Observation, examined
from mlxdoctor.reproduce.rules import Ruling, undecided
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.records import ADAPTER_FILE
from mlxdoctor.twin.rerun import Laboratory, stamps
from mlxdoctor.verdict import CauseStatus

#: The cause that loading the adapter with other names shows, and what is done, for people.
NOT_LOADED = "adapter-not-loaded"
RENAMED = "the tensors renamed to fit the base"
#: Share of the base's loss that an adapter takes away which works. Both are of the same rows, so
#: that no two seeds differ; 105 of 107 sound runs of the real split take 0.024 or more.
BETTER = 0.02
#: Share of the base's loss by which a model may differ that is the base itself; by judgement:
#: the same sums in another order differ by less.
SAME = 1e-3


def shown_by_diagnosis(failure: Failure, cause: Cause) -> Ruling:
    """The verdict on a cause whose proofs are facts, which no rerun could show better."""
    strongest = max(cause.weights, key=lambda code: cause.weights[code])
    for finding in failure.findings:
        is_proof = cause.weights.get(finding.code, 0.0) >= cause.weights[strongest]
        if is_proof and finding.severity is Severity.ERROR:
            message = finding.message.removesuffix(".")
            reason = f"the diagnosis itself shows it, no experiment was made: {message}"
            return Ruling("confirmed", reason, 1.0)
    coverage = failure.coverage.get(cause.id)
    wanted = f"a finding such as {strongest}, which this run does not have"
    if coverage is None or coverage.status is CauseStatus.NO_SIGN:
        return undecided("nothing that was looked at speaks for it, or rules it out", wanted)
    if coverage.status is CauseStatus.RULED_OUT:
        return Ruling("refuted", f"looked for and not there: {coverage.why}")
    if coverage.status is CauseStatus.OPEN:
        return undecided(coverage.why, coverage.needs or wanted)
    return undecided(f"{coverage.why} speaks for it, and is no proof", wanted)


def loaded_by_other_names(lab: Laboratory, run: Run) -> Ruling:
    """Load the adapter with its tensors renamed: made now, or recalled.

    Raises:
        BudgetSpent: there was not enough time for it.
        InputError: the folder can't be written.
    """

    def make(folder: Path) -> Ruling:
        try:
            return rename_tensors(lab, run, folder)
        except InputError as error:
            return undecided(f"it can't be tried: {error}", "files with which it can be")

    files = [path for path in (run.files.adapter, run.files.config) if path is not None]
    folders = {*(path.parent for path in files), lab.recipe.base, lab.recipe.data}
    facts = {"values": lab.recipe.values, "files": [stamps(path) for path in sorted(folders)]}
    return lab.remembered(
        f"direct-{NOT_LOADED}", facts, RENAMED, make, lambda values: Ruling(**values)
    )


def rename_tensors(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Load a copy of the adapter whose tensors are named as the base's modules are."""
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None or adapter.path.suffix != ".safetensors":
        reason = "there is no adapter file to rename the tensors of"
        return undecided(reason, "the adapter as a .safetensors file")
    shapes = {one.name: (one.in_features, one.out_features) for one in adapter.modules}
    modules = renamed(shapes, base.linear_shapes)
    if modules is None:
        return undecided(
            "no renaming makes every tensor fit a module of the base by its shape",
            "the base that the adapter was trained on (--base)",
        )
    names = {
        factor.name: f"{modules[module.name]}.{factor.name.rpartition('.')[2]}"
        for module in adapter.modules
        for factor in (module.a, module.b, module.magnitude)
        if factor is not None and not factor.name.startswith(f"{modules[module.name]}.")
    }

    def seen(name: str, names: Mapping[str, str]) -> Observation:
        path = copied(run.files, adapter.path, folder / name, names)
        return examined(path, base=lab.recipe.base, data=lab.recipe.data)

    if not names:
        return Ruling("refuted", "every tensor already has the name of a module of the base")
    before = seen("as-saved", {})
    lab.keep_within_time("the adapter with its tensors renamed")
    after = seen("renamed", names)
    if after.loss is None or after.base_loss is None:
        return undecided("no held-out answers say what the adapter does", "rows with answers")
    losses = f"the loss on held-out answers is {after.loss:.3f}, the base's {after.base_loss:.3f}"
    had_effect = before.loss is not None and before.loss < after.base_loss
    if _works(after) and not had_effect:
        return Ruling(
            "confirmed",
            f"with its {len(names)} tensors renamed in a copy the adapter works: {losses}; as "
            "saved it has no effect",
            1.0,
        )
    if abs(after.loss - after.base_loss) > SAME * after.base_loss:
        return undecided(
            f"with its tensors renamed to fit, the adapter is applied, and {losses}: that is no "
            "proof",
            "rows like those trained on (--data)",
        )
    return Ruling("refuted", "with its tensors renamed to fit, the adapter has no effect either")


def _works(seen: Observation) -> bool:
    """Whether the tuned model is better than the base on held-out answers."""
    if seen.loss is None or seen.base_loss is None:
        return False
    return seen.loss < seen.base_loss * (1 - BETTER)


def renamed(
    shapes: Mapping[str, tuple[int, ...]], places: Mapping[str, tuple[int, ...]]
) -> dict[str, str] | None:
    """Name -> the place that it belongs to; None where a name has none.

    A wrapper's prefix is what differs: the longest end of the name that is, or ends, the name of
    one place with the same shape.

    Args:
        shapes: of modules or tensors, by the names that they have.
        places: of those that there are to load into, by their names.
    """
    names: dict[str, str] = {}
    for name, shape in shapes.items():
        parts = name.split(".")
        for start in range(len(parts)):
            end = ".".join(parts[start:])
            fitting = [
                place
                for place, size in places.items()
                if (place == end or place.endswith(f".{end}")) and size == shape
            ]
            if len(fitting) == 1:
                names[name] = fitting[0]
                break
        else:
            return None
    return names


def copied(
    files: RunFiles, adapter: Path, folder: Path, names: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Copy an adapter and its configuration, as mlx-lm loads them.

    Args:
        adapter: a .safetensors file.
        folder: made where it does not exist.
        names: tensor -> its name in the copy, where that is another.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if files.config is not None:
        shutil.copyfile(files.config, folder / "adapter_config.json")
    if names:
        tensors = {names.get(key, key): value for key, value in load_file(adapter).items()}
        save_file(tensors, folder / ADAPTER_FILE)
    else:
        shutil.copyfile(adapter, folder / ADAPTER_FILE)
    return folder
