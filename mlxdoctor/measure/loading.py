"""Models and tokenizers, loaded by mlx-lm: no code from their folders, and no network."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import TemplateFailure, TemplateTooMuch
from mlxdoctor.evidence.code_files import code_named_in
from mlxdoctor.evidence.source import require_file
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.measure.cpu_functions import on_cpu
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current
from mlxdoctor.safety.stages import Kind, Stage, models_run

#: Hugging Face's libraries read these when they are imported.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
#: Of the machine's memory, what a model written out as float32 may take.
MOST_OF_MEMORY = 0.5
#: Times as many layers as weights that a configuration may state: layers may share theirs.
MOST_TIMES = 16
#: Seconds that a chat template may take for two short messages: real ones take a millisecond.
MOST_SECONDS = 0.5
_MESSAGES = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "."})
_OTHER_TEMPLATE = "download the model's chat template again"
#: A library's error is cut to this many characters: one tensor name a line adds up.
MAX_ERROR = 400


def require_plain(folder: Path) -> None:
    """Refuse a model folder that is not here, or whose files ask for code of their own.

    mlx-lm before 0.32 runs `model_file` without asking; transformers asks on the terminal.

    Raises:
        InputError: it is no folder, a configuration in it names code, or can't be read.
    """
    if not folder.is_dir():
        raise InputError(folder, "is not a local model folder", "nothing is downloaded: name one")
    found = code_named_in(folder)
    if found:
        key, file = found[0].key, found[0].path.name
        raise InputError(
            folder,
            f"needs code of its own ({key} in {file}) to be loaded, which is not run",
            "record generations yourself and name them with --generations",
        )


def require_sense(folder: Path) -> None:
    """Refuse a model whose configuration asks for far more layers than its weights have.

    A model is built before its weights are looked at: 20,000,000 layers take all memory.

    Raises:
        InputError: it does.
    """
    base = BaseModel.read(folder)
    layers = [layer for name in base.tensors if (layer := layer_of(name)[0]) is not None]
    stated, there = base.num_layers, max(layers, default=-1) + 1
    if stated is not None and there and stated > MOST_TIMES * there:
        raise InputError(
            folder,
            f"has a config.json that says {stated:,} layers, and weights of {there}",
            "download the model again",
        )


def require_tokenizer(folder: Path) -> None:
    """Refuse what our own reader refuses, before transformers runs into it without a limit.

    Raises:
        InputError: as `Tokenizer.read`; the chat template takes too much for two short messages;
            or a file of the model is a pipe or a device, at which whoever opens it waits.
    """
    for file in sorted(islice(folder.iterdir(), current().folder_entries)):
        # A link that leads nowhere is as good as no file: the libraries look for them first.
        if file.exists() and not file.is_dir():
            require_file(file)
    if not (folder / "tokenizer.json").is_file():
        return
    tokenizer, begun = Tokenizer.read(folder), time.monotonic()
    try:
        tokenizer.render(_MESSAGES)
    except TemplateTooMuch as failure:
        raise InputError(folder, str(failure), _OTHER_TEMPLATE) from None
    except TemplateFailure:
        # It may want other messages.
        return
    if (took := time.monotonic() - begun) > MOST_SECONDS:
        problem = f"has a chat template that takes {took:.1f} s for two short messages"
        raise InputError(folder, problem, _OTHER_TEMPLATE)


@contextmanager
def without_network() -> Iterator[None]:
    """Keep Hugging Face's libraries from asking their server for anything meanwhile."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    constants: Any = None
    with suppress(ImportError):
        # Imported with the variables set or long before: the value counts, not they.
        from huggingface_hub import constants
    was = getattr(constants, "HF_HUB_OFFLINE", None)
    if constants is not None:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        if constants is not None:
            constants.HF_HUB_OFFLINE = was if before["HF_HUB_OFFLINE"] else False
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def load_local(folder: Path, adapter: Path | None = None) -> tuple[Any, Any]:
    """The model and the tokenizer of a local folder, loaded by mlx-lm.

    Args:
        adapter: the folder of an adapter to put on it.

    Raises:
        InputError: as `require_plain`, or mlx-lm cannot load them.
    """
    require_plain(folder)
    require_sense(folder)
    require_tokenizer(folder)
    with without_network():
        return load_with_mlx_lm(str(folder), adapter)


def load_with_mlx_lm(
    name: str, adapter: Path | None = None, *, trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder, or of a repository that is fetched.

    Raises:
        InputError: mlx-lm cannot load them.
    """
    models_run()
    from mlx_lm import load

    with _refused(name):
        loaded: Any = load(
            name,
            tokenizer_config={"trust_remote_code": trust_remote_code},
            adapter_path=None if adapter is None else str(adapter),
            **({"trust_remote_code": True} if trust_remote_code else {}),
        )
    return loaded[0], loaded[1]


def load_weights(folder: Path, *, lazy: bool = False) -> tuple[Any, dict[str, Any]]:
    """The model of a local folder without its tokenizer, and its configuration.

    Args:
        folder: of the model.
        lazy: leave the weights on the disk until they are needed.

    Raises:
        InputError: as `load_local`, or mlx-lm cannot be used here.
    """
    require_plain(folder)
    require_sense(folder)
    models_run()
    try:
        from mlx_lm.utils import load_model
    except (ImportError, OSError, ValueError) as error:
        raise InputError(
            None, f"mlx-lm cannot be used here ({error})", "check with `python -c 'import mlx_lm'`"
        ) from None
    with without_network(), _refused(folder):
        model, config = load_model(folder, lazy=lazy)
    return model, config


def in_float32(model: Any, *, whole: bool = True) -> None:
    """Make a model compute in float32 on a processor, tensor by tensor, where memory allows it.

    Half precision and quantised matrices are 12 times slower and more there. The weights stay
    what they are; only what is computed from them is rounded less.

    Args:
        model: its weights may still be on the disk.
        whole: write quantised matrices out, too.
    """
    import mlx.core as mx

    if not on_cpu() or _float32_bytes(model) > MOST_OF_MEMORY * _memory():
        mx.eval(model.parameters())
        return
    quantized = [one for _, one in model.named_modules() if hasattr(one, "scales")]
    if whole and quantized:
        from mlx_lm.utils import dequantize_model

        for module in quantized:
            # What is written out has the precision of the scales.
            _cast(module)
        quantized.clear()
        del module
        dequantize_model(model)
    for _, module in model.named_modules():
        _cast(module)


def _cast(module: Any) -> None:
    import mlx.core as mx

    for name in [name for name, one in module.items() if isinstance(one, mx.array)]:
        if mx.issubdtype(module[name].dtype, mx.floating):
            module[name] = module[name].astype(mx.float32)
            # One by one, so that what it was cast from is not kept for all of them at once.
            mx.eval(module[name])


def _float32_bytes(model: Any) -> int:
    from mlxdoctor.measure.model_parameters import count_parameters

    return 4 * sum(sum(counts.values()) for counts in count_parameters(model))


def _memory() -> float:
    """Bytes of memory of this machine; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a local folder, as mlx-lm gives it.

    Raises:
        InputError: as `load_local`.
    """
    require_plain(folder)
    require_tokenizer(folder)
    from mlx_lm.utils import load_tokenizer

    stage = Stage(f"the tokenizer of {folder}", Kind.LIBRARY, limit="tokenizer_seconds")
    with stage, without_network(), _refused(folder):
        return load_tokenizer(folder)


@contextmanager
def _refused(name: Path | str) -> Iterator[None]:
    """Say in a sentence why mlx-lm cannot load `name`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # what a model's code raises for sizes that nobody looked at
        problem = f"cannot be loaded by mlx-lm ({said(error)})"
        raise InputError(name, problem, "check that it generates at all") from None


def said(error: Exception) -> str:
    """What a library's error says, without a line for every tensor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2])
    if len(lines) > 2:
        text = f"{text}; and {len(lines) - 2} more like it"
    text = f"{type(error).__name__}: {text}"
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}…"
