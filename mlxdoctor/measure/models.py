"""The base model and the tuned one, in memory, with one copy of the weights they share."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import CONFIG_NAME
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.evidence.safetensors_file import model_files
from mlxdoctor.evidence.source import Source, hash_file, read_json_object
from mlxdoctor.measure.cpu_functions import on_cpu
from mlxdoctor.measure.loading import in_float32, load_weights, require_plain, said
from mlxdoctor.safety.errors import InputError

Which = Literal["base", "tuned"]

ADAPTER_FILE = "adapters.safetensors"
#: Why nothing of the models is known where nobody wanted them run.
NOT_ASKED = "no model was run, because of --no-generate"


@dataclass(frozen=True)
class LoadedModels:
    """A base model, and what turns it into the tuned one and back.

    Attributes:
        base: the base model's files.
        sources: the files that were loaded: the base's and the adapter's.
        has_adapter: whether there is a tuned model besides the base.
        load_failure: why the adapter could not be put on the base, as mlx-lm says it.
        select: gives the mlx model of that name. Both share modules, so that only the
            one selected last may be used.
    """

    base: BaseModel
    sources: tuple[Source, ...]
    has_adapter: bool
    load_failure: str | None
    select: Callable[[Which], Any]

    #: A step to what is measured with them, whose sources name the models' files too.
    kind: ClassVar[str] = ""
    #: What is made with it can be kept, and read back in its place; see `measure/kept`.
    is_models: ClassVar[bool] = True

    @classmethod
    def find(cls, run: RunView) -> LoadedModels:
        """The run's models, loaded into memory once; see `Evidence`."""
        # What is not at hand comes first: leaving the option out would not bring it.
        base = run.need(BaseModel)
        tuned = run.files.tuned or run.files.adapter
        if tuned is None:
            raise Missing("there is no adapter and no tuned model to compare with the base")
        if not run.allow_model:
            raise Missing(f"{NOT_ASKED}; leave that option out")
        if run.progress is not None:
            run.progress("loading the models", 0, 1)
        return load(base, tuned)

    @property
    def has_tuned(self) -> bool:
        """Whether `select("tuned")` gives a tuned model."""
        return self.has_adapter and self.load_failure is None


class LoadedBase(LoadedModels):
    """The base model alone, before anything was trained."""

    @classmethod
    def find(cls, run: RunView) -> LoadedBase:
        """The base model, loaded into memory once; see `Evidence`."""
        if not run.allow_model:
            raise Missing("no model was run, because of --no-generate; leave that option out")
        found = load(run.need(BaseModel))
        return cls(**{one.name: getattr(found, one.name) for one in fields(found)})


def loaded_from(files: RunFiles) -> tuple[Path, ...]:
    """Every file of a run that decides what its models are; without the tokenizer's."""
    found: list[Path] = []
    folders = [files.base, files.tuned]
    if files.adapter is not None and _is_whole_model(files.adapter):
        folders.append(files.adapter)
    elif files.adapter is not None:
        file = files.adapter / ADAPTER_FILE if files.adapter.is_dir() else files.adapter
        found += [file, file.parent / CONFIG_NAME]
    for folder in filter(None, folders):
        found.append(folder / "config.json")
        with suppress(InputError):
            found += model_files(folder)
    return tuple(one for one in dict.fromkeys(found) if one.is_file())


def load(
    base: BaseModel, adapter_path: Path | None = None, before: LoadedModels | None = None
) -> LoadedModels:
    """Load a base model and, on top of it, an adapter.

    LoRA layers are swapped in and out, so that the weights are in memory once. A file of
    whole weights, as a full fine-tune leaves, replaces the base's tensors of those names.
    Nothing is downloaded, and no code from the folders is run.

    Args:
        base: a local model folder.
        adapter_path: an adapter's folder or .safetensors file, or a folder of a tuned
            model; None for the base model alone.
        before: the same base with another adapter, which is taken off and may not be used
            any more; the base is not loaded again.

    Raises:
        InputError: the base model needs code of its own or cannot be loaded, MLX is not
            usable here, or the adapter is not one of mlx-lm's.
    """
    model = before.select("base") if before is not None else _load_model(base.path, base.config)
    if adapter_path is None:
        in_float32(model)
        return LoadedModels(base, base.sources, False, None, lambda _: model)
    if _is_whole_model(adapter_path):
        return _with_whole_model(base, model, adapter_path)
    file = adapter_path / ADAPTER_FILE if adapter_path.is_dir() else adapter_path
    sources = (*base.sources, hash_file(file))
    if _is_lora(file):
        failure, select = _with_lora(model, file)
    else:
        failure, select = _with_weights(model, file)
    return LoadedModels(base, sources, True, failure, select)


def _is_whole_model(path: Path) -> bool:
    return (path / "config.json").is_file() and not (path / ADAPTER_FILE).is_file()


def _load_model(path: Path, config: Mapping[str, Any]) -> Any:
    require_plain(path)
    model_type = str(config.get("model_type", ""))
    if not re.fullmatch(r"[\w-]+", model_type):
        raise InputError(path, f"has an unusable model_type ({model_type!r})", "check config.json")
    return load_weights(path, lazy=True)[0]


def _is_lora(file: Path) -> bool:
    adapter = Adapter.read(file)
    if adapter.naming == "peft":
        raise InputError(
            file,
            "is a PEFT adapter, which mlx-lm does not load",
            "transpose its factors and rename them lora_a and lora_b",
        )
    return bool(adapter.modules) or bool(adapter.unpaired)


def _with_lora(model: Any, file: Path) -> tuple[str | None, Callable[[Which], Any]]:
    from mlx.utils import tree_unflatten
    from mlx_lm.utils import load_adapters

    config = file.parent / CONFIG_NAME
    stated, _ = read_json_object(config)
    before = dict(model.named_modules())
    failure = None
    try:
        if file.name == ADAPTER_FILE:
            load_adapters(model, str(file.parent))
        else:
            # mlx-lm loads folders only: a checkpoint is shown to it under the usual name.
            with tempfile.TemporaryDirectory() as name:
                (Path(name) / ADAPTER_FILE).symlink_to(file.resolve())
                (Path(name) / CONFIG_NAME).write_text(json.dumps(stated))
                load_adapters(model, name)
                _evaluate_adapter(model)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        failure = said(error)
    model.eval()
    after = dict(model.named_modules())
    changed = [name for name, module in before.items() if after.get(name, module) is not module]
    inside = {id(module): name for name, module in after.items()}
    in_float32(model)
    # Written out, a quantised layer is another module, where the adapter's layer has it.
    now = dict(model.named_modules())
    plain = {name: now.get(inside.get(id(before[name]), ""), before[name]) for name in changed}
    states: dict[str, Any] = {
        "base": tree_unflatten(list(plain.items())),
        "tuned": tree_unflatten([(name, now[name]) for name in changed]),
    }

    def select(which: Which) -> Any:
        if changed:
            model.update_modules(states[which])
        return model

    return failure, select


def _with_weights(model: Any, file: Path) -> tuple[str | None, Callable[[Which], Any]]:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    weights: Any = mx.load(str(file))
    in_float32(model, whole=False)
    current = dict(tree_flatten(model.parameters()))
    fitting = {
        name: tensor.astype(mx.float32) if on_cpu() else tensor
        for name, tensor in weights.items()
        if name in current and tensor.shape == current[name].shape
    }
    failure = None
    if len(fitting) < len(weights):
        misfits = sorted(weights.keys() - fitting.keys())
        failure = (
            f"{len(misfits)} of {len(weights)} tensors do not fit the base model, "
            f"such as {misfits[0]}"
        )
    states = {"base": {name: current[name] for name in fitting}, "tuned": fitting}

    def select(which: Which) -> Any:
        model.load_weights(list(states[which].items()), strict=False)
        return model

    return failure, select


def _with_whole_model(base: BaseModel, model: Any, folder: Path) -> LoadedModels:
    tuned = BaseModel.read(folder)
    models = {"base": model, "tuned": _load_model(folder, tuned.config)}
    for one in models.values():
        in_float32(one)
    sources = (*base.sources, *tuned.sources)
    return LoadedModels(base, sources, True, None, lambda which: models[which])


def _evaluate_adapter(model: Any) -> None:
    """Read the adapter's tensors now: their file is gone afterwards."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from mlxdoctor.measure.model_parameters import ADAPTER_LEAVES

    named = tree_flatten(model.parameters())
    mx.eval([one for name, one in named if name.rsplit(".", 1)[-1] in ADAPTER_LEAVES])
