"""Experiments that need no training: load it rightly, or evaluate it again, and compare."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from mlxdoctor.discovery import RunFiles
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.reproduce.judge import Judgement
from mlxdoctor.reproduce.laboratory import Laboratory, examined
from mlxdoctor.reproduce.limits import Limits
from mlxdoctor.run import Run

ADAPTER_FILE = "adapters.safetensors"


def rename_tensors(lab: Laboratory, run: Run) -> Judgement:
    """Load a copy of the adapter whose tensors are named as the base's modules are."""
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None or adapter.path.suffix != ".safetensors":
        return Judgement("undecided", "there is no adapter file to rename the tensors of")
    names = renamed(adapter, base)
    if names is None:
        return Judgement(
            "undecided", "no renaming makes every tensor fit a module of the base by its shape"
        )
    as_saved = _copied(lab, run.files, adapter.path, "as-saved", {})
    fitted = _copied(lab, run.files, adapter.path, "renamed", names)
    before, after = examined(as_saved, lab.recipe), examined(fitted, lab.recipe)
    works = (
        after.loss is not None
        and after.base_loss is not None
        and after.loss < after.base_loss * (1 - Limits().better)
    )
    if not names:
        return Judgement("refuted", "every tensor already has the name of a module of the base")
    if works and (before.loss is None or before.loss >= (before.base_loss or math.inf)):
        return Judgement(
            "confirmed",
            f"with its {len(names)} tensors renamed in a copy the adapter works: the loss on "
            f"held-out answers is {after.loss:.3f}, the base's {after.base_loss:.3f}; as saved "
            "it has no effect",
            1.0,
        )
    return Judgement("refuted", "with its tensors renamed to fit, the adapter is no better")


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


def _copied(
    lab: Laboratory, files: RunFiles, adapter: Path, name: str, names: Mapping[str, str]
) -> Path:
    from safetensors.numpy import load_file, save_file

    folder = lab.folder / f"direct-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    if files.config is not None:
        shutil.copyfile(files.config, folder / "adapter_config.json")
    if names:
        tensors = {names.get(key, key): value for key, value in load_file(adapter).items()}
        save_file(tensors, folder / ADAPTER_FILE)
    else:
        shutil.copyfile(adapter, folder / ADAPTER_FILE)
    return folder


def evaluate_again(lab: Laboratory, run: Run) -> Judgement:
    """Evaluate base and tuned model on the split that the reported figure is of."""
    metrics, adapter = run.get(ReportedMetrics), run.files.adapter
    reported = [one for one in (metrics.losses if metrics else ()) if one.loss is not None]
    if not reported or adapter is None:
        return Judgement("undecided", "there is no reported loss, or no adapter to evaluate")
    from mlx_lm import load

    from mlxdoctor.trainer.evaluation import evaluate
    from mlxdoctor.trainer.losses import exact_loss, parity_loss
    from mlxdoctor.trainer.parts import parts_of

    settings = lab.recipe.settings(lab.folder / "direct-evaluation", 1, lab.recipe.seed)
    folder = _copied(lab, run.files, adapter, "evaluation", {})
    closest: tuple[float, float, float, float] | None = None
    for masks_prompt in (settings.mask_prompt, not settings.mask_prompt):
        values = {**lab.recipe.values, "mask_prompt": masks_prompt}
        settings = lab.recipe.settings(folder, 1, lab.recipe.seed, values)
        for loss_of in (exact_loss, parity_loss):
            losses = []
            for path in (None, str(folder)):
                model, tokenizer = load(settings.model, adapter_path=path)[:2]
                parts = parts_of(settings)
                rows = parts.encode(settings, tokenizer)
                split = rows.test if reported[0].split == "test" else rows.valid
                if not split:
                    return Judgement("undecided", "the split that was evaluated is not here")
                losses.append(evaluate(model, parts.evaluation_batches(split, -1), loss_of))
            said = float(reported[0].loss or math.nan)
            off = min(abs(one - said) for one in losses)
            if closest is None or off < closest[0]:
                closest = (off, said, losses[0], losses[1])
    if closest is None:
        return Judgement("undecided", "nothing could be evaluated")
    _, said, base, tuned = closest
    limit = Limits().same_loss * max(said, 1e-9)
    text = (
        f"reported is a loss of {said:.3f}; the base has {base:.3f}, with the adapter {tuned:.3f}"
    )
    if abs(said - base) <= limit < abs(said - tuned):
        return Judgement("confirmed", f"evaluated again: {text}", 1.0)
    if abs(said - tuned) <= limit:
        return Judgement("refuted", f"evaluated again: {text}")
    return Judgement("undecided", f"evaluated again: {text}, which is neither")


def fresh_shapes(lab: Laboratory, run: Run) -> Judgement:
    """Make one step on this base with the run's configuration, and compare the shapes."""
    adapter, base = run.get(Adapter), run.get(BaseModel)
    if adapter is None or base is None:
        return Judgement("undecided", "there is no adapter, or no base to compare it with")
    from mlxdoctor.trainer import train

    folder = lab.folder / "direct-one-step"
    train(lab.recipe.settings(folder, 1, lab.recipe.seed))
    fresh = {one.name: (one.in_features, one.out_features) for one in Adapter.read(folder).modules}
    shared = [one for one in adapter.modules if one.name in fresh]
    other = [one for one in shared if fresh[one.name] != (one.in_features, one.out_features)]
    if not shared:
        return Judgement("undecided", "no module of the adapter has the name of one of this base")
    if not other:
        return Judgement("refuted", "an adapter trained on this base has the same shapes")
    one = other[0]
    return Judgement(
        "confirmed",
        f"an adapter trained here with the same configuration has other shapes: {one.name} is "
        f"{fresh[one.name][0]} × {fresh[one.name][1]}, and {one.in_features} × {one.out_features} "
        f"in the run's file ({len(other)} of {len(shared)} modules differ)",
        1.0,
    )


def resume_without(lab: Laboratory, run: Run) -> Judgement:
    """Rerun with and without the file resumed from: what loads nothing changes nothing."""
    from mlxdoctor.trainer import train

    del run
    if "resume_adapter_file" not in lab.recipe.values:
        return Judgement("refuted", "the run was not resumed")
    without = {k: v for k, v in lab.recipe.values.items() if k != "resume_adapter_file"}
    curves = []
    for name, values in (("with", lab.recipe.values), ("without", without)):
        folder = lab.folder / f"direct-resumed-{name}"
        result = train(lab.recipe.settings(folder, 5, lab.recipe.seed, values))
        curves.append([one.train_loss for one in result.steps])
    if curves[0] == curves[1]:
        return Judgement(
            "confirmed",
            "rerun with the file it was resumed from and without it, the losses are the same to "
            f"the last bit ({curves[0][0]:.3f} at iteration 1): nothing of it was loaded",
            1.0,
        )
    return Judgement(
        "undecided", "the file it was resumed from changes the losses: some of it loads"
    )


#: Cause -> the experiment for it. The randomness of training plays no part in these.
DIRECT: Mapping[str, Callable[[Laboratory, Run], Judgement]] = MappingProxyType(
    {
        "adapter-not-loaded": rename_tensors,
        "evaluated-without-adapter": evaluate_again,
        "wrong-base-model": fresh_shapes,
        "resume-mismatch": resume_without,
    }
)
