"""Experiments that are made once, since chance plays no part: load it rightly, and compare.

Each is a function of its own, which `DIRECT` lists with the cause that it can show:

    def evaluate_again(lab: Laboratory, run: Run, folder: Path) -> Ruling:
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors.numpy import load_file, save_file

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.load import load_local
from mlxdoctor.reproduce.rerun import Laboratory, Observation, examined, split_loss, stamps
from mlxdoctor.reproduce.rules import Limits, Ruling, undecided
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.masked_loss import LossFunction, evaluate, exact_loss, parity_loss
from mlxdoctor.train.parts import parts_of
from mlxdoctor.train.records import ADAPTER_FILE

#: Share of the base's loss that an adapter takes away which works. Both are of the same rows, so
#: that no two seeds differ; 105 of 107 sound runs of the real split take 0.024 or more.
BETTER = 0.02
#: Share of the base's loss by which a model may differ that is the base itself; by judgement:
#: the same sums in another order differ by less.
SAME = 1e-3
#: Iterations of each rerun of a resumed run.
RESUMED = 5
_ITS_RUN = "configuration and log of the run that the file is from"
_ITS_BASE = "the base that the adapter was trained on (--base)"


@dataclass(frozen=True)
class Measured:
    """What a direct experiment said, and what it cost."""

    label: str
    ruling: Ruling
    iterations: int
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measured:
        """What `asdict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        return cls(**{**values, "ruling": Ruling(**values["ruling"])})


@dataclass(frozen=True)
class Direct:
    """An experiment that is made once.

    Attributes:
        title: what is done, for people.
        make: does it, in a folder of its own.
        iterations: that it trains for.
    """

    title: str
    make: Callable[[Laboratory, Run, Path], Ruling]
    iterations: int = 0


def measured(cause: str, lab: Laboratory, run: Run) -> Measured:
    """What the direct experiment for a cause says: made now, or recalled.

    Raises:
        BudgetSpent: there was not enough time for it.
        InputError: the folder can't be written.
    """
    experiment = DIRECT[cause]

    def make(folder: Path) -> Measured:
        try:
            ruling = experiment.make(lab, run, folder)
        except InputError as error:
            ruling = undecided(f"it can't be tried: {error}", "files with which it can be")
        return Measured(experiment.title, ruling, experiment.iterations)

    files = run.files
    single = [path for path in (files.adapter, files.config, *files.metrics, *files.logs) if path]
    folders = {*(path.parent for path in single), lab.recipe.base, lab.recipe.data}
    facts = {
        "cause": cause,
        "values": lab.recipe.values,
        "seed": lab.recipe.seed,
        "files": [stamps(path) for path in sorted(folders | {files.tuned or lab.recipe.base})],
    }
    return lab.remembered(f"direct-{cause}", facts, experiment.title, make, Measured.from_dict)


def evaluate_again(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Evaluate base and tuned model on the split that the reported figure is of.

    Nobody recorded how the figure was made: with the prompt in the loss or without it, and
    with mlx-lm's mask or the correct one. The way that comes closest is taken.
    """
    metrics, adapter = run.get(ReportedMetrics), run.files.adapter
    losses = [one for one in (metrics.losses if metrics else ()) if one.loss is not None]
    if not losses or adapter is None:
        reason = "there is no reported loss, or no adapter to evaluate"
        return undecided(reason, "a reported loss or perplexity (JSON), and the adapter")
    copied(run.files, adapter, folder)
    reported = float(losses[0].loss or math.nan)
    found: dict[tuple[bool, LossFunction], list[float]] = {}
    # One model in memory at a time, each loaded once.
    for path in (None, folder):
        model, tokenizer = load_local(lab.recipe.base, path)
        for masks_prompt in (True, False):
            values = {**lab.recipe.values, "mask_prompt": masks_prompt}
            settings = lab.recipe.settings(folder, 1, lab.recipe.seed, values)
            parts = parts_of(settings)
            rows = parts.encode(settings, tokenizer)
            split = rows.test if losses[0].split == "test" else rows.valid
            if not split:
                reason = "the split that was evaluated is not here"
                return undecided(reason, "the rows that were evaluated (--data)")
            for loss in (exact_loss, parity_loss):
                batches = parts.batches(settings).evaluation(split, -1)
                batches = lab.within_time(batches, "base and adapter evaluated again")
                found.setdefault((masks_prompt, loss), []).append(evaluate(model, batches, loss))
    base, tuned = min(found.values(), key=lambda pair: min(abs(one - reported) for one in pair))
    limit = Limits().same_loss * max(reported, 1e-9)
    text = (
        f"evaluated again: reported is a loss of {reported:.3f}; the base has {base:.3f}, with "
        f"the adapter {tuned:.3f}"
    )
    if abs(reported - base) <= limit < abs(reported - tuned):
        return Ruling("confirmed", text, 1.0)
    if abs(reported - tuned) <= limit:
        return Ruling("refuted", text)
    return undecided(f"{text}, which is neither", "how the figure was measured, and on what")


def fuse_again(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Compare the fused model with base plus adapter, and with a fusion at full precision."""
    fused, adapter = run.files.tuned, run.files.adapter
    if fused is None:
        reason = "there is no fused model in the run's folder to compare"
        return undecided(reason, "the fused model")
    if adapter is None or adapter.suffix != ".safetensors":
        return undecided(
            "there is no adapter beside the fused model that could be fused again",
            "the adapter that was fused",
        )
    copied(run.files, adapter, folder / "adapter")
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed)

    def loss_of(model: Any, tokenizer: Any) -> float | None:
        return split_loss(lab, settings, model, tokenizer, "the fused model compared")

    model, tokenizer = load_local(Path(settings.model), folder / "adapter")
    tuned = loss_of(model, tokenizer)
    again = loss_of(fused_fully(model), tokenizer)
    saved = loss_of(*load_local(fused))
    if tuned is None or again is None or saved is None:
        reason = "there are no validation rows to compare them on"
        return undecided(reason, "more validation rows (--data)")
    return judge_fusion(tuned, again, saved)


def judge_fusion(tuned: float, again: float, saved: float) -> Ruling:
    """The verdict from three losses on the same rows, in nats a token.

    Args:
        tuned: of the base with the adapter.
        again: of the two fused again at full precision.
        saved: of the fused model as it was saved.
    """
    limits = Limits()
    same = limits.same_loss * tuned
    text = (
        f"on the validation rows base plus adapter have a loss of {tuned:.3f}, fused again at full "
        f"precision {again:.3f}, and the fused model as saved {saved:.3f}"
    )
    if abs(again - tuned) > same:
        reason = f"{text}: even at full precision fusing changes the loss"
        return undecided(reason, "base and adapter in float32")
    if abs(saved - tuned) <= same:
        return Ruling("refuted", text)
    # Not greater: a fused model without a finite loss differs as well.
    if not saved <= tuned * (1 + limits.better):
        return Ruling("confirmed", text, 1.0)
    return undecided(f"{text}: it differs, but by little", "more validation rows (--data)")


def fused_fully(model: Any) -> Any:
    """The model with its adapter fused at full precision; it is changed."""
    from mlx.utils import tree_unflatten

    fused = [
        (name, module.fuse(dequantize=True))
        for name, module in model.named_modules()
        if hasattr(module, "fuse")
    ]
    model.update_modules(tree_unflatten(fused))
    return model


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
            "no renaming makes every tensor fit a module of the base by its shape", _ITS_BASE
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

    before = seen("as-saved", {})
    if not names:
        return _judge_answers(run, before)
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


def _judge_answers(run: Run, seen: Observation) -> Ruling:
    """The verdict on an adapter that fits: were the recorded answers made without it?"""
    fits = "every tensor already has the name of a module of the base"
    recorded = run.files.generations
    items = Generations.read(recorded).items if recorded is not None else ()
    if not items or any(item.tuned.split() != (item.base or "").split() for item in items):
        return Ruling("refuted", fits)
    if not _works(seen):
        return Ruling("refuted", f"{fits}, and loaded here the adapter is no better than the base")
    return Ruling(
        "confirmed",
        f"loaded here the adapter works: the loss on held-out answers is {seen.loss:.3f}, the "
        f"base's {seen.base_loss:.3f}; yet all {len(items)} answers recorded as the tuned "
        "model's are those recorded as the base's",
        1.0,
    )


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


def resume_again(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Rerun with the file resumed from; then without it, or with the tensors renamed that it lost.

    What is not loaded changes nothing when it is left away; what should have been loaded
    changes the losses once its names fit.
    """
    del run
    resumed = lab.recipe.values.get("resume_adapter_file")
    if resumed is None:
        return Ruling("refuted", "the run was not resumed")

    def losses(name: str, path: str | None) -> list[float]:
        values = {**lab.recipe.values, "resume_adapter_file": path}
        settings = lab.recipe.settings(folder / name, RESUMED, lab.recipe.seed, values)
        return [step.train_loss for step in lab.train(settings, "rerun as it was resumed").steps]

    recorded = losses("as-recorded", resumed)
    saved = load_file(resumed)
    wanted = {k: v.shape for k, v in load_file(folder / "as-recorded" / ADAPTER_FILE).items()}
    lost = {name: tensor.shape for name, tensor in saved.items() if name not in wanted}
    if not lost:
        return undecided(
            f"all {len(saved)} tensors of the file it was resumed from are loaded; what it means "
            "that mlx-lm restores no optimizer state they do not show",
            "the same run, uninterrupted",
        )
    if len(lost) == len(saved):
        if losses("without", None) != recorded:
            reason = "without the file it was resumed from the losses differ"
            return undecided(reason, _ITS_RUN)
        return Ruling(
            "confirmed",
            "rerun with the file it was resumed from and without it, the losses are the same to "
            f"the last bit ({recorded[0]:.3f} at iteration 1): nothing of it was loaded",
            1.0,
        )
    text = f"{len(lost)} of {len(saved)} tensors of the file it was resumed from are not loaded"
    names = renamed(lost, wanted)
    if names is None:
        return undecided(f"{text}, and no renaming gives each of them a place", _ITS_RUN)
    copy = folder / "renamed.safetensors"
    save_file({names.get(key, key): value for key, value in saved.items()}, copy)
    fitted = losses("renamed", str(copy))
    if fitted == recorded:
        return undecided(f"{text}, but renamed to fit they change nothing", _ITS_RUN)
    return Ruling(
        "confirmed",
        f"{text}: rerun with a copy in which they have the names of this run's adapter, the loss "
        f"at iteration 1 is {fitted[0]:.3f} instead of {recorded[0]:.3f}",
        1.0,
    )


def first_loss(lab: Laboratory, folder: Path, **values: Any) -> float | None:
    """The validation loss before the first update, nats a token; None where nothing is validated.

    Args:
        values: keys of the configuration that are not as recorded.

    Raises:
        InputError: training is not possible with them.
        BudgetSpent: the time was over before it was done.
    """
    settings = lab.recipe.settings(folder, 1, lab.recipe.seed, {**lab.recipe.values, **values})
    result = lab.train(settings, "validated before the first update")
    return result.validations[0].val_loss if result.validations else None


def validate_on_training_rows(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Validate as recorded, and then on the training rows, of which there is a batch.

    Both before the first update, so that the model is the base and nothing else differs.
    """
    del run
    try:
        before = first_loss(lab, folder / "as-recorded")
        problem = "nothing is validated on" if before is None else "the loss is NaN"
    except InputError as error:
        before, problem = None, f"it is refused ({error})"
    if before is not None and math.isfinite(before):
        text = f"validated as recorded, before any update, the loss is {before:.3f}"
        return Ruling("refuted", text)
    data = folder / "data"
    shutil.copytree(lab.recipe.data, data)
    shutil.copyfile(Dataset.read(data).splits["train"].path, data / "valid.jsonl")
    after = first_loss(lab, folder / "with-a-batch", data=str(data), val_batches=-1)
    if after is None or not math.isfinite(after):
        text = f"validated as recorded {problem}, and on the training rows there is no loss either"
        return Ruling("refuted", text)
    return Ruling(
        "confirmed",
        f"validated as recorded, before any update, {problem}; on the training rows and with "
        f"val_batches -1 it is {after:.3f}, with the same model",
        1.0,
    )


def fresh_shapes(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Make one step on this base with the run's configuration, and compare the shapes.

    Bases of one kind have the same shapes. Then the log tells: its first validation is of the
    base before any training, and made again on the right base it gives the same loss.
    """
    adapter = run.get(Adapter)
    if adapter is None:
        return undecided("there is no adapter to compare", "the adapter")
    here = first_loss(lab, folder)
    fresh = {one.name: (one.in_features, one.out_features) for one in Adapter.read(folder).modules}
    shared = [module for module in adapter.modules if module.name in fresh]
    other = [one for one in shared if fresh[one.name] != (one.in_features, one.out_features)]
    if not shared:
        return undecided("no module of the adapter has the name of one of this base", _ITS_BASE)
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
        named = first_loss(lab, folder / "named", model=str(own))
    return judge_same_shapes(first_validation(run.get(TrainingLog)), here, named)


def first_validation(log: TrainingLog | None) -> float | None:
    """The validation loss that the log has before the first update, nats a token."""
    series = log.main.get("val_loss") if log is not None else None
    if series is None or not len(series) or int(series.iterations[0]) > 1:
        return None
    return float(series.values[0])


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


#: The experiment that shows each of these causes.
DIRECT: Mapping[str, Direct] = MappingProxyType(
    {
        "adapter-not-loaded": Direct("the tensors renamed to fit the base", rename_tensors),
        "evaluated-without-adapter": Direct(
            "evaluated again, without and with the adapter", evaluate_again
        ),
        "fused-model-differs": Direct("fused again at full precision", fuse_again),
        "no-validation-data": Direct(
            "validated on the training rows", validate_on_training_rows, 2
        ),
        "resume-mismatch": Direct(
            "resumed again, and without what was not loaded", resume_again, 2 * RESUMED
        ),
        "wrong-base-model": Direct("one step of training, for the shapes", fresh_shapes, 1),
    }
)
