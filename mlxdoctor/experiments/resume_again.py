"""A run that was resumed: what of the file that it was resumed from was really loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.copies import ADAPTER_FILE
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Ruling, undecided
from mlxdoctor.run import Run

_ITS_RUN = "configuration and log of the run that the file is from"
#: Iterations of each of the two reruns.
ITERATIONS = 5


@direct("resume-mismatch", "resumed again, and without what was not loaded", iterations=10)
def resume_again(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Rerun with the file resumed from; then without it, or with the tensors renamed that it lost.

    What is not loaded changes nothing when it is left away; what should have been loaded
    changes the losses once its names fit.
    """
    del run
    resumed = lab.recipe.values.get("resume_adapter_file")
    if resumed is None:
        return Ruling("refuted", "the run was not resumed")
    from safetensors.numpy import load_file, save_file

    recorded = _losses(lab, folder / "as-recorded", {**lab.recipe.values})
    saved = load_file(resumed)
    wanted = {k: v.shape for k, v in load_file(folder / "as-recorded" / ADAPTER_FILE).items()}
    lost = [name for name in saved if name not in wanted]
    if not lost:
        return undecided(
            f"all {len(saved)} tensors of the file it was resumed from are loaded; what it means "
            "that mlx-lm restores no optimizer state they do not show",
            "the same run, uninterrupted",
        )
    if len(lost) == len(saved):
        values = {k: v for k, v in lab.recipe.values.items() if k != "resume_adapter_file"}
        without = _losses(lab, folder / "without", values)
        if without != recorded:
            reason = "without the file it was resumed from the losses differ"
            return undecided(reason, _ITS_RUN)
        return Ruling(
            "confirmed",
            "rerun with the file it was resumed from and without it, the losses are the same to "
            f"the last bit ({recorded[0]:.3f} at iteration 1): nothing of it was loaded",
            1.0,
        )
    names = _places(lost, {name: saved[name].shape for name in lost}, wanted)
    text = f"{len(lost)} of {len(saved)} tensors of the file it was resumed from are not loaded"
    if names is None:
        return undecided(f"{text}, and no renaming gives each of them a place", _ITS_RUN)
    copy = folder / "renamed.safetensors"
    save_file({names.get(key, key): value for key, value in saved.items()}, copy)
    values = {**lab.recipe.values, "resume_adapter_file": str(copy)}
    fitted = _losses(lab, folder / "renamed", values)
    if fitted == recorded:
        return undecided(f"{text}, but renamed to fit they change nothing", _ITS_RUN)
    return Ruling(
        "confirmed",
        f"{text}: rerun with a copy in which they have the names of this run's adapter, the loss "
        f"at iteration 1 is {fitted[0]:.3f} instead of {recorded[0]:.3f}",
        1.0,
    )


def _losses(lab: Laboratory, folder: Path, values: Mapping[str, Any]) -> list[float]:
    settings = lab.recipe.settings(folder, ITERATIONS, lab.recipe.seed, values)
    result = lab.train(settings, "rerun as it was resumed")
    return [one.train_loss for one in result.steps]


def _places(
    lost: list[str], shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, str] | None:
    """Lost tensor -> the one place of its shape whose name its own ends with, or that ends so."""
    places: dict[str, str] = {}
    for name in lost:
        fitting = [
            one
            for one, shape in wanted.items()
            if shape == shapes[name] and (name.endswith(f".{one}") or one.endswith(f".{name}"))
        ]
        if len(fitting) != 1:
            return None
        places[name] = fitting[0]
    return places
