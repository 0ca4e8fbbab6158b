"""A validation loss that means nothing: measured again on at least one whole batch."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Ruling, undecided
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError


@direct("no-validation-data", "validated on a whole batch", iterations=2)
def give_a_batch(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Validate as recorded, and then on all validation rows, filled up to a batch.

    Both before the first update, so that the model is the base and nothing else differs.
    """
    del run
    recipe = lab.recipe
    before = _validation_loss(lab, folder / "as-recorded", {**recipe.values})
    if isinstance(before, float) and math.isfinite(before):
        return Ruling(
            "refuted", f"validated as recorded, before any update, the loss is {before:.3f}"
        )
    data = folder / "data"
    batch = recipe.settings(folder, 1, recipe.seed).batch_size
    shutil.copytree(recipe.data, data)
    rows, added = _filled(data, batch)
    if rows < batch:
        reason = f"there are no {batch} rows in all, so no batch to try with"
        return undecided(reason, f"{batch} validation rows, or a smaller batch_size")
    values = {**recipe.values, "data": str(data), "val_batches": -1}
    after = _validation_loss(lab, folder / "with-a-batch", values)
    was = before if isinstance(before, str) else "the loss is NaN"
    if isinstance(after, float) and math.isfinite(after):
        of = f"{rows} rows" + (f", {added} of them training rows," if added else "")
        return Ruling(
            "confirmed",
            f"validated as recorded, before any update, {was}; on {of} and with val_batches -1 "
            f"it is {after:.3f}, with the same model",
            1.0,
        )
    return Ruling(
        "refuted", f"validated as recorded {was}, and on {rows} rows there is no loss either"
    )


def _validation_loss(lab: Laboratory, folder: Path, values: dict[str, object]) -> float | str:
    """The loss before the first update, in nats a token; a clause where there is none."""
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed, values)
    try:
        result = lab.train(settings, "validated before the first update")
    except InputError as error:
        return f"it is refused ({error})"
    return result.validations[0].val_loss if result.validations else "nothing is validated on"


def _filled(data: Path, batch: int) -> tuple[int, int]:
    """Fill the validation split up to a batch; how many rows it has, and how many were added."""
    dataset = Dataset.read(data)
    valid, train = dataset.splits.get("valid"), dataset.splits.get("train")
    count = len(valid.rows) if valid is not None else 0
    missing = max(0, batch - count)
    if not missing or train is None:
        return count, 0
    lines = train.path.read_text("utf-8").splitlines()
    chosen = [lines[number - 1] for number in train.line_numbers[:missing]]
    path = data / "valid.jsonl"
    kept = path.read_text("utf-8").splitlines() if path.is_file() else []
    path.write_text("".join(f"{line}\n" for line in (*kept, *chosen) if line.strip()), "utf-8")
    return count + len(chosen), len(chosen)
