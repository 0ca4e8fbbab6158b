"""A fully fine-tuned or fused model as a page: what it changed of its base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.inspect.page import Column, Page, figure, in_order, layer_number
from mlxdoctor.measure.weights.changed_tensors import WeightChange, component, weight_changes
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class TensorRow:
    """One tensor beside the base's.

    Attributes:
        tensor: its name.
        layer: its layer, None outside the layers.
        component: the part of the model that it belongs to.
        shape: of the values that it stands for.
        base_stored: how the base stores it ("BF16", "4-bit affine/64"), None where it has none.
        stored: how the tuned model stores it, None where it has none.
        status: "same", "changed", "reshaped", "missing" or "extra".
        relative: ‖W' − W‖/‖W‖; None where it is not finite or there is nothing to compare.
        nonfinite: NaN or infinite values, where it was changed.
    """

    tensor: str
    layer: int | None
    component: str
    shape: tuple[int, ...]
    base_stored: str | None
    stored: str | None
    status: str
    relative: float | None
    nonfinite: int


@dataclass(frozen=True)
class ComponentRow:
    """The tensors of one part of the model together.

    Attributes:
        component: its name.
        tensors: how many the two models have in it.
        changed: how many of them differ.
        median_relative: of the changed tensors' relative changes, None without any.
        largest_relative: the largest of them.
    """

    component: str
    tensors: int
    changed: int
    median_relative: float | None
    largest_relative: float | None


@dataclass(frozen=True)
class ModelInspection:
    """A model beside its base.

    Attributes:
        path: the tuned model.
        base: the base model.
        stated_type: what the configuration beside a single file says was trained, if it does.
        tensors: a row for each tensor of either.
        components: the same, put together.
    """

    path: Path
    base: Path
    stated_type: str | None
    tensors: tuple[TensorRow, ...]
    components: tuple[ComponentRow, ...]

    @property
    def nonfinite(self) -> int:
        """NaN or infinite values in changed tensors."""
        return sum(row.nonfinite for row in self.tensors)

    @property
    def is_faulty(self) -> bool:
        """Whether it certainly cannot be used, or is no adapter although it was to be one."""
        return self.nonfinite > 0 or self.stated_type in ("lora", "dora")


def full_weights(path: Path, base: BaseModel | None) -> TunedModel | None:
    """The whole model at the path; None where LoRA factors are, or nothing usable.

    Raises:
        InputError: there is a whole model, and no base to compare it with.
    """
    is_folder = (path / "config.json").is_file()
    if base is None and not is_folder:
        return None
    try:
        adapter = Adapter.read(path)
    except InputError:
        tuned = TunedModel.read(path) if is_folder else None
    else:
        tuned = None if adapter.modules else TunedModel.of(adapter)
    if tuned is not None and base is None:
        raise InputError(path, "is a whole model", "name the base to compare it with by --base")
    return tuned


def inspect_model(
    tuned: TunedModel, base: BaseModel, progress: Callable[[int, int], None]
) -> ModelInspection:
    """Compare the models, a tensor at a time; every value of both is read.

    Args:
        progress: called with the tensors done and their number.

    Raises:
        InputError: a file changed or cannot be read, or the configuration beside a single
            file is not sound.
    """
    rows = []
    for change in weight_changes(base, tuned):
        rows.append(_row(change))
        progress(len(rows), len(tuned.tensors))
    beside = TrainingConfig.beside(tuned.path) if tuned.from_adapter else None
    parts = dict.fromkeys(row.component for row in rows)
    return ModelInspection(
        path=tuned.path,
        base=base.path,
        stated_type=beside.fine_tune_type if beside is not None else None,
        tensors=tuple(rows),
        components=tuple(_component(part, rows) for part in parts),
    )


def _row(change: WeightChange) -> TensorRow:
    is_measured = change.relative is not None and isfinite(change.relative)
    return TensorRow(
        tensor=change.name,
        layer=layer_of(change.name)[0],
        component=component(change.name),
        shape=change.shape,
        base_stored=change.before,
        stored=change.after,
        status=change.status,
        relative=change.relative if is_measured else None,
        nonfinite=change.nonfinite,
    )


def _component(part: str, rows: Sequence[TensorRow]) -> ComponentRow:
    mine = [row for row in rows if row.component == part]
    changed = [row for row in mine if row.status == "changed"]
    sizes = [row.relative for row in changed if row.relative is not None]
    return ComponentRow(
        component=part,
        tensors=len(mine),
        changed=len(changed),
        median_relative=median(sizes) if sizes else None,
        largest_relative=max(sizes, default=None),
    )


def model_object(inspection: ModelInspection, sort: str) -> dict[str, Any]:
    """The model for JSON."""
    return {
        **asdict(inspection),
        "path": str(inspection.path),
        "base": str(inspection.base),
        "tensors": [asdict(row) for row in in_order(inspection.tensors, sort)],
        "faulty": inspection.is_faulty,
    }


def model_page(inspection: ModelInspection, sort: str, page: Page) -> str:
    """The model's summary, its parts, and a row for each tensor."""
    parts, rows = inspection.components, in_order(inspection.tensors, sort)
    components = [
        Column("component", [part.component for part in parts], "left"),
        Column("changed", [f"{part.changed} of {part.tensors}" for part in parts]),
        Column("median ‖W'−W‖/‖W‖", [figure(part.median_relative) for part in parts]),
        Column("largest", [figure(part.largest_relative) for part in parts]),
    ]
    tensors = [
        Column("layer", [layer_number(row.layer) for row in rows]),
        Column("tensor", [page.clean(row.tensor) for row in rows], "left"),
        Column("shape", [" x ".join(map(str, row.shape)) for row in rows]),
        Column("stored as", [page.clean(_stored(row)) for row in rows], "left"),
        Column("status", [row.status for row in rows], "left"),
        Column("‖W'−W‖/‖W‖", [figure(row.relative) for row in rows]),
    ]
    if inspection.nonfinite:
        tensors.append(Column("NaN or infinite", [row.nonfinite or "" for row in rows]))
    return "\n".join(
        [*_summary(inspection, page), "", page.table(components), "", page.table(tensors)]
    )


def _summary(inspection: ModelInspection, page: Page) -> list[str]:
    counts = Counter(row.status for row in inspection.tensors)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    lines = [
        page.clean(str(inspection.path)),
        page.clean(f"against {inspection.base}"),
        f"tensors: {listed}",
    ]
    if inspection.nonfinite:
        lines.append(f"{inspection.nonfinite:,} values are NaN or infinite")
    if inspection.stated_type in ("lora", "dora"):
        lines.append(
            f"the configuration beside it says {inspection.stated_type}, but these are full weights"
        )
    return lines


def _stored(row: TensorRow) -> str:
    if row.base_stored is None or row.stored is None or row.base_stored == row.stored:
        return row.stored or row.base_stored or ""
    return f"{row.base_stored} -> {row.stored}"
