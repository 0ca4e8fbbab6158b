"""Models and tokenizers in memory, loaded by mlx-lm: no code from their folders, no network."""

import json
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from mlxdoctor.evidence.adapter import ADAPTER_LEAVES, Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import TemplateFailure, TemplateTooMuch
from mlxdoctor.evidence.code_files import code_named_in
from mlxdoctor.evidence.config import CONFIG_NAME
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.options import NOT_ASKED
from mlxdoctor.evidence.source import Source, hash_file, read_json_object, require_file
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import cut
from mlxdoctor.safety.reading_limits import current
from mlxdoctor.safety.stages import Kind, Stage, models_run

Which = Literal["base", "tuned"]
#: Model -> key of a question -> what it predicted.
Answers = dict[Which, dict[tuple[bytes, bytes], Any]]

ADAPTER_FILE = "adapters.safetensors"
_LAYER = re.compile(r"\.\d+\.")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
#: Of the machine's memory, what a model written out as float32 may take.
MOST_OF_MEMORY = 0.5
#: Times as many layers as weights that a configuration may state: layers may share theirs.
MOST_TIMES = 16
_MESSAGES = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "."})
#: A library's error is cut to this many characters: one tensor name a line adds up.
MAX_ERROR = 400


@dataclass(frozen=True)
class LoadedModels:
    """A base model, and what turns it into the tuned one and back.

    Attributes:
        names: the models that there are, the base first.
        load_failure: why the adapter could not be put on the base model, as mlx-lm says it.
        select: gives the mlx model of that name. Only the one selected last may be used.
        answers: model -> question -> what it predicted; adapters of one base ask it the same.
    """

    base: BaseModel
    sources: tuple[Source, ...]
    names: tuple[Which, ...]
    load_failure: str | None
    select: Callable[[Which], Any]
    answers: Answers = field(default_factory=lambda: defaultdict(dict), repr=False, compare=False)

    #: A step to what is measured with them, whose sources name the models' files too.
    kind: ClassVar[str] = ""
    needs_models: ClassVar[bool] = True

    @classmethod
    def find(cls, run: RunView) -> "LoadedModels":
        """The run's models, loaded into memory once."""
        # What is not at hand comes first: leaving the option out would not bring it.
        base = run.need(BaseModel)
        tuned = run.files.tuned or run.files.adapter
        if tuned is None:
            raise Missing("there is no adapter and no tuned model to compare with the base")
        if not run.options.allow_model:
            raise Missing(f"{NOT_ASKED}; leave that option out")
        if run.progress is not None:
            run.progress("loading the models", 0, 1)
        return load(base, tuned)

    def has_answered(self, question: Any) -> bool:
        return all(question.key in self.answers[which] for which in self.names)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While a model runs: its errors are said as a sentence.

        Raises:
            InputError: it cannot be run on what it was asked.
        """
        try:
            yield
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            problem = f"cannot be run ({type(error).__name__}: {error})"
            remedy = "check that data, tokenizer and model belong together"
            raise InputError(self.base.path, problem, remedy) from None


class LoadedBase(LoadedModels):
    """The base model alone, before anything was trained."""

    @classmethod
    def find(cls, run: RunView) -> "LoadedBase":
        """The base model, loaded into memory once."""
        if not run.options.allow_model:
            raise Missing(f"{NOT_ASKED}; leave that option out")
        return cls(**vars(load(run.need(BaseModel))))


def load(
    base: BaseModel, adapter_path: Path | None = None, before: LoadedModels | None = None
) -> LoadedModels:
    """Load a base model and, on top of it, an adapter, whose layers are swapped in and out.

    A file of whole weights, as a full fine-tune leaves, replaces the base's tensors of those names.

    Args:
        adapter_path: an adapter's folder or .safetensors file, or a folder of a tuned model.
        before: the same base with another adapter, which may not be used any more.

    Raises:
        InputError: the base model or MLX is not usable here, or the adapter not one of mlx-lm's.
    """
    model = before.select("base") if before is not None else load_weights(base.path, lazy=True)
    if adapter_path is None:
        in_float32(model)
        return LoadedModels(base, base.sources, ("base",), None, lambda _: model)
    if (adapter_path / "config.json").is_file() and not (adapter_path / ADAPTER_FILE).is_file():
        both = {"base": model, "tuned": load_weights(adapter_path, lazy=True)}
        for loaded in both.values():
            in_float32(loaded)
        sources = (*base.sources, *BaseModel.read(adapter_path).sources)
        return LoadedModels(base, sources, ("base", "tuned"), None, lambda which: both[which])
    file = adapter_path / ADAPTER_FILE if adapter_path.is_dir() else adapter_path
    adapter = Adapter.read(file)
    if adapter.naming == "peft":
        problem = "is a PEFT adapter, which mlx-lm does not load"
        raise InputError(file, problem, "transpose its factors and rename them lora_a and lora_b")
    put_on = _with_lora if adapter.modules or adapter.unpaired else _with_weights
    failure, select = put_on(model, file)
    names: tuple[Which, ...] = ("base", "tuned") if failure is None else ("base",)
    models = LoadedModels(base, (*base.sources, hash_file(file)), names, failure, select)
    if before is not None:
        models.answers["base"] = before.answers["base"]
    return models


def _with_lora(model: Any, file: Path) -> tuple[str | None, Callable[[Which], Any]]:
    from mlx.utils import tree_unflatten

    before = dict(model.named_modules())
    failure = None
    try:
        _load_adapter(model, file)
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


def _load_adapter(model: Any, file: Path) -> None:
    """Put an adapter on a model as mlx-lm does, whatever its file is called."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_adapters

    # mlx-lm loads folders only: each file, a checkpoint too, is shown to it under the usual name.
    stated, _ = read_json_object(file.parent / CONFIG_NAME)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ADAPTER_FILE).symlink_to(file.resolve())
        (Path(folder) / CONFIG_NAME).write_text(json.dumps(stated))
        try:
            load_adapters(model, folder)
        except ValueError as error:
            # It speaks of the folder that it was shown.
            raise ValueError(str(error).replace(folder, file.name)) from error
        # Read now: the link is gone afterwards.
        named = tree_flatten(model.parameters())
        mx.eval([value for name, value in named if name.rsplit(".", 1)[-1] in ADAPTER_LEAVES])


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
    if misfits := sorted(weights.keys() - fitting.keys()):
        number = f"{len(misfits)} of {len(weights)}"
        failure = f"{number} tensors do not fit the base model, such as {misfits[0]}"
    states = {"base": {name: current[name] for name in fitting}, "tuned": fitting}

    def select(which: Which) -> Any:
        model.load_weights(list(states[which].items()), strict=False)
        return model

    return failure, select


def on_cpu() -> bool:
    """Whether MLX computes on the processor here, and not on a GPU."""
    import mlx.core as mx

    return bool(mx.default_device() == mx.Device(mx.cpu))


def in_float32(model: Any, *, whole: bool = True) -> None:
    """Make a model compute in float32 on a processor, tensor by tensor, where memory allows it.

    Half precision and quantised matrices, which `whole` writes out, are 12 times slower there.
    """
    import mlx.core as mx
    import psutil

    parameters = sum(sum(counts.values()) for counts in count_parameters(model))
    if not on_cpu() or 4 * parameters > MOST_OF_MEMORY * psutil.virtual_memory().total:
        mx.eval(model.parameters())
        return
    quantized = [module for _, module in model.named_modules() if hasattr(module, "scales")]
    if whole and quantized:
        from mlx_lm.utils import dequantize_model

        for module in quantized:
            # What is written out has the precision of the scales.
            _cast(module)
        del module, quantized
        dequantize_model(model)
    for _, module in model.named_modules():
        _cast(module)


def count_parameters(model: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Trainable and frozen parameters by module, those of all layers together, unpacked."""
    from mlx import nn
    from mlx.utils import tree_flatten

    # The base class's: an override may say anything.
    trained = {name for name, _ in tree_flatten(nn.Module.trainable_parameters(model))}
    bits = {
        name: module.bits
        for name, module in model.named_modules()
        if hasattr(module, "bits") and hasattr(module, "scales")
    }
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for name, one in tree_flatten(nn.Module.parameters(model)):
        owner, _, leaf = name.rpartition(".")
        if owner in bits and leaf in {"scales", "biases"}:
            continue
        size = one.size * 32 // bits[owner] if owner in bits and leaf == "weight" else one.size
        component = _LAYER.sub(".*.", owner).removesuffix(".linear").removesuffix(".embedding")
        if leaf in ADAPTER_LEAVES:
            component += " (adapter)"
        counts[name not in trained][component] += size
    return dict(counts[0].most_common()), dict(counts[1].most_common())


def _cast(module: Any) -> None:
    import mlx.core as mx

    for name, value in list(module.items()):
        if isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating):
            module[name] = value.astype(mx.float32)
            # One by one, so that what it was cast from is not kept for all of them at once.
            mx.eval(module[name])


def load_weights(folder: Path, *, lazy: bool = False) -> Any:
    """The model of a local folder without its tokenizer; its weights on the disk where lazy.

    Raises:
        InputError: as `require_plain`, or mlx-lm cannot load it, or cannot be used here.
    """
    require_plain(folder)
    _require_sense(folder)
    models_run()
    try:
        from mlx_lm.utils import load_model
    except (ImportError, OSError, ValueError) as error:
        problem = f"mlx-lm cannot be used here ({error})"
        raise InputError(None, problem, "check with `python -c 'import mlx_lm'`") from None
    with _loading(folder):
        return load_model(folder, lazy=lazy)[0]


def load_tokenizer(folder: Path, ends: Sequence[int] = ()) -> Any:
    """The tokenizer of a local folder, as mlx-lm gives it.

    `ends` are the ids that end an answer; none for the tokenizer's own.

    Raises:
        InputError: as `require_plain`, or it cannot be loaded, or takes too much.
    """
    require_plain(folder)
    _require_tokenizer(folder)
    from mlx_lm.utils import load_tokenizer

    stage = Stage(f"the tokenizer of {folder}", Kind.LIBRARY, limit="tokenizer_seconds")
    with stage, _loading(folder):
        return load_tokenizer(folder, eos_token_ids=list(ends) or None)


def require_plain(folder: Path) -> None:
    """Refuse a model folder that is not here, or whose files ask for code of their own.

    mlx-lm before 0.32 runs `model_file` without asking; transformers asks on the terminal.

    Raises:
        InputError: it is no folder, a configuration in it names code, or can't be read.
    """
    if not folder.is_dir():
        raise InputError(folder, "is not a local model folder", "nothing is downloaded: name one")
    if named := code_named_in(folder):
        code = f"{named[0].key} in {named[0].path.name}"
        problem = f"needs code of its own ({code}) to be loaded, which is not run"
        remedy = "record generations yourself and name them with --generations"
        raise InputError(folder, problem, remedy)


def _require_sense(folder: Path) -> None:
    """Refuse a model whose configuration names no family, or far more layers than weights."""
    # A model is built before its weights are looked at: 20,000,000 layers take all memory.
    base = BaseModel.read(folder)
    model_type = str(base.config.get("model_type", ""))
    if not re.fullmatch(r"[\w-]+", model_type):
        problem = f"has an unusable model_type ({model_type!r})"
        raise InputError(folder, problem, "check config.json")
    layers = [layer for name in base.tensors if (layer := layer_of(name)[0]) is not None]
    stated, there = base.num_layers, max(layers, default=-1) + 1
    if stated is not None and there and stated > MOST_TIMES * there:
        problem = f"has a config.json that says {stated:,} layers, and weights of {there}"
        raise InputError(folder, problem, "download the model again")


def _require_tokenizer(folder: Path) -> None:
    """Refuse what our own reader refuses, before transformers runs into it without a limit."""
    # Nor may a file of the model be a pipe or a device, at which whoever opens it waits.
    for file in sorted(islice(folder.iterdir(), current().folder_entries)):
        # A link that leads nowhere is as good as no file: the libraries look for them first.
        if file.exists() and not file.is_dir():
            require_file(file)
    if not (folder / "tokenizer.json").is_file():
        return
    tokenizer = Tokenizer.read(folder)
    try:
        tokenizer.render(_MESSAGES)
    except TemplateTooMuch as failure:
        raise InputError(folder, str(failure), "download its chat template again") from None
    except TemplateFailure:  # it may want other messages
        pass


@contextmanager
def _loading(folder: Path) -> Iterator[None]:
    """While mlx-lm loads: no network, and its errors are said as a sentence."""
    # Hugging Face's libraries read the variables when they are imported; later, the value counts.
    from unittest import mock

    from huggingface_hub import constants

    offline = mock.patch.dict(os.environ, dict.fromkeys(_OFFLINE, "1"))
    try:
        with offline, mock.patch.object(constants, "HF_HUB_OFFLINE", True):
            yield
    except InputError:
        raise
    except Exception as error:  # what a model's code raises for sizes that nobody looked at
        problem = f"cannot be loaded by mlx-lm ({said(error)})"
        raise InputError(folder, problem, "check that it generates at all") from None


def end_tokens(*known: Tokenizer | BaseModel | None) -> tuple[int, ...]:
    """The ids that end an answer, as tokenizer and base model say, where they are known."""
    stated = (end for source in known if source is not None for end in source.eos_token_ids)
    return tuple(dict.fromkeys(stated))


def said(error: Exception) -> str:
    """What a library's error says, without a line for every tensor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    more = f"; and {len(lines) - 2} more like it" if len(lines) > 2 else ""
    text = f"{type(error).__name__}: {' '.join(lines[:2])}{more}"
    return cut(text, MAX_ERROR)
