"""A fully fine-tuned or fused model in figures: what it changed of its base."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.formats.strict_json import finite
from mlxdoctor.inspect.page import Column, Inspection, Row, figure
from mlxdoctor.measure.weights.changed_tensors import weight_changes
from mlxdoctor.safety.errors import InputError

_TENSORS = (
    Column("layer", "layer"),
    Column("tensor", "tensor", align="left"),
    Column("shape", "shape", lambda shape: " x ".join(map(str, shape))),
    Column("base stored as", "base_stored", align="left"),
    Column("stored as", "stored", align="left"),
    Column("status", "status", align="left"),
    Column("‖W'−W‖/‖W‖", "relative", figure),
    Column("NaN or infinite", "nonfinite", lambda count: count or ""),
)


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
) -> Inspection:
    """Compare the models, every value of both; `progress` is told of each tensor."""
    rows: list[Row] = []
    for change in weight_changes(base, tuned):
        rows.append(
            {
                "tensor": change.name,
                "layer": layer_of(change.name)[0],
                "shape": change.shape,
                "base_stored": change.before,
                "stored": change.after,
                "status": change.status,
                "relative": finite(change.relative),
                "nonfinite": change.nonfinite,
            }
        )
        progress(len(rows), len(tuned.tensors))
    beside = TrainingConfig.beside(tuned.path) if tuned.from_adapter else None
    stated = beside.fine_tune_type if beside is not None else None
    nonfinite = sum(row["nonfinite"] for row in rows)
    is_no_adapter = stated in ("lora", "dora")
    counts = Counter(row["status"] for row in rows)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    summary = [str(tuned.path), f"against {base.path}", f"tensors: {listed}"]
    if nonfinite:
        summary.append(f"{nonfinite:,} values are NaN or infinite")
    if is_no_adapter:
        summary.append(f"the configuration beside it says {stated}, but these are full weights")
    figures = {
        "path": str(tuned.path),
        "base": str(base.path),
        "stated_type": stated,
        "tensors": rows,
        "faulty": nonfinite > 0 or is_no_adapter,
    }
    return Inspection("models", figures, summary, rows, _TENSORS)
