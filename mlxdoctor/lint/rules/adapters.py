"""Adapters that are claimed, made, saved and loaded."""

import ast
import re
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import (
    OPTIMIZERS,
    Function,
    SourceFile,
    constant,
    is_model,
    keyword,
    last_name,
)

_CLAIMS = re.compile(
    r"_*+(?:(?:has|is|with)_\w*(?:adapter|lora)s?(?:_layers)?"
    r"|\w*(?:adapter|lora)s?_(?:added|attached|applied|loaded))"
)
#: Names of what may make an adapter, or train a part of the model.
_MAKING = re.compile(
    r"(?!save).*(?:adapter|lora|dora|peft|convert|attach|inject|freeze|update_modules|apply|wrap"
    r"|prepare|set_?up|build|create)"
)


@rule(
    Severity.ERROR,
    """
import mlx.nn as nn

def add_adapter(model, config):
    model._has_adapter = True
    return model
""",
    {
        "nn\n": "nn\nfrom mlx_lm.tuner.utils import linear_to_lora_layers\n",
        "    model._has": (
            "    model.freeze()\n"
            "    linear_to_lora_layers(model, config.num_layers, config.lora_parameters)\n"
            "    model._has"
        ),
    },
)
def adapter_flag(source: SourceFile) -> Hits:
    """An adapter is claimed by a flag, and none is made.

    What is trained is decided by the layers and by what is frozen. A flag set in place of a
    conversion makes everything after it believe in an adapter that is not there: the model is
    trained whole, and what is saved as an adapter are its full weights (seed 001).

    Reported where the file calls, imports and defines nothing that could have made an adapter.
    """
    if any(_MAKING.match(name) for name in _foreign_names(source)):
        return
    for node in source.of(ast.Assign):
        for target in node.targets if constant(node.value) is True else ():
            if (
                isinstance(target, ast.Attribute)
                and _CLAIMS.fullmatch(target.attr.lower())
                and is_model(target.value)
                and isinstance(source.scope(node), Function)
            ):
                yield node, f"{target.attr} is set, but nothing in this file makes an adapter"


def _foreign_names(source: SourceFile) -> Iterator[str]:
    """What the file calls and imports of others, with the names of arguments and of its classes."""
    for call in source.of(ast.Call):
        if source.function(call.func) is None:
            yield last_name(call).lower()
        yield from ((argument.arg or "").lower() for argument in call.keywords)
    yield from (made.name.lower() for made in source.of(ast.ClassDef))
    yield from (alias.name.lower() for alias in source.of(ast.alias))


#: Functions that only read a model are called so: `load`, `load_model`, `load_base`.
_LOADER = re.compile(r"load(?:_(?:base|model|tokenizer|pretrained|and|the))*")
_FREEZING = re.compile("freeze|prepare|setup")


@rule(
    Severity.ERROR,
    """
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(path, parameters):
    model, tokenizer = load(path)
    linear_to_lora_layers(model, 16, parameters)
    return model, optim.Adam(1e-5)
""",
    {"    linear_to_lora": "    model.freeze()\n    linear_to_lora"},
)
def adapter_without_freeze(source: SourceFile) -> Hits:
    """Layers are converted to LoRA, and the model is not frozen before.

    A conversion freezes nothing, not even the weights that the LoRA layers wrap: the whole model is
    trained, at a rate that was meant for LoRA, and what is saved as an adapter is not what was
    learned (seed 001). Frozen after the conversion, the new layers are frozen too, and nothing is
    trainable.
    """
    freezes = list(source.calls(".freeze"))
    # A function of another file whose name speaks of it may freeze the model.
    may_freeze = any(
        source.function(call.func) is None and _FREEZING.search(last_name(call).lower())
        for call in source.of(ast.Call)
    )
    trains = any(source.calls("mlx.nn.value_and_grad", "mlx_lm.tuner.train", *OPTIMIZERS))
    unfreezes = any(source.calls(".unfreeze"))
    for conversion in source.calls("*.linear_to_lora_layers"):
        if not conversion.args:
            continue
        model = ast.unparse(conversion.args[0])
        if trains and not may_freeze and _is_loaded(source, conversion.args[0]):
            fault = f"{model}.freeze() is never called"
            yield conversion, f"{fault}: the whole model is trained, not LoRA alone"
        for freeze in freezes if not unfreezes else ():
            is_same = ast.unparse(freeze) == f"{model}.freeze()"
            same_scope = source.scope(freeze) is source.scope(conversion)
            if is_same and same_scope and source.is_before(conversion, freeze):
                yield freeze, f"{model} is frozen after its layers were converted: freeze it before"


def _is_loaded(source: SourceFile, model: ast.expr) -> bool:
    """Whether the model is read in this file, where nothing is frozen."""
    pairs = [value.value for value in source.values(model) if isinstance(value, ast.Subscript)]
    loaded = [value for pair in pairs for value in source.values(pair)]
    return any(isinstance(call, ast.Call) and _LOADER.fullmatch(last_name(call)) for call in loaded)


#: What is loaded for training to go on, or for what was trained to be used.
_TRAINED = re.compile(r"adapter|lora|dora|resume|checkpoint|ckpt|fine_?tun")
#: What is called as if it looked at names.
_LOOKS = re.compile(
    r"require|check(?!point)|validate|verif|compar|compat|match|fits|missing|unexpected|differ|assert"
)


@rule(
    Severity.WARNING,
    """
import mlx.core as mx

def resume(model, path):
    model.load_weights(path, strict=False)
""",
    """
import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

def resume(model, path):
    weights = mx.load(path)
    wanted = dict(tree_flatten(model.trainable_parameters()))
    if weights.keys() != wanted.keys():
        raise ValueError(f"{path} does not fit: {sorted(weights.keys() ^ wanted.keys())[:5]}")
    model.update(tree_unflatten(list(weights.items())))
""",
)
def non_strict_load(source: SourceFile) -> Hits:
    """Weights loaded with `strict=False`.

    Names that fit nothing are left out without a word: an adapter for another model, or one whose
    names have a prefix too many, loads "successfully" and does nothing.

    Reported of an adapter or a checkpoint whose names the function does not look at before.
    """
    for call in source.calls(".load_weights"):
        strict = keyword(call, "strict") or (call.args[1] if len(call.args) > 1 else None)
        if constant(strict) is not False or not call.args:
            continue
        parts = list(source.parts(call.args[0]))
        origins = dict.fromkeys(
            [*parts, *(value for part in parts for value in source.values(part))]
        )
        text = " ".join([getattr(source.scope(call), "name", ""), *map(ast.unparse, origins)])
        # What was taken out of a model fits it when it is put back.
        from_model = any(
            any(source.calls(".parameters", ".trainable_parameters", within=origin))
            for origin in origins
        )
        if _TRAINED.search(text.lower()) and not from_model:
            names = {name for origin in origins for name in source.names_in(origin)}
            if not _looks_at_names(source, call, names - {"str", "list"}):
                yield call, "names that fit nothing are skipped in silence: compare them first"


def _looks_at_names(source: SourceFile, load: ast.Call, loaded: set[str]) -> bool:
    """Whether the function compares names before, or calls what looks as if it did."""
    scope, numbers = source.scope(load), source.index.number
    calls = source.of(ast.Call, within=scope)
    looking = [call for call in calls if _LOOKS.search(last_name(call).lower())]
    if any(call is not load and loaded & source.names_in(call) for call in looking):
        return True
    # `a.keys() - b`, `set(a) ^ set(b)`, `name not in weights`.
    return any(
        (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn))
        or re.search(r"\bkeys\b|\bset\(", ast.unparse(node))
        for node in source.of(ast.Compare, ast.BinOp, within=scope)
        if numbers[node] < numbers[load]
    )


@rule(
    Severity.ERROR,
    """
import mlx.nn as nn

def convert(module):
    for name, child in vars(module).items():
        if isinstance(child, nn.Linear):
            setattr(module, name, wrap(child))
""",
    """
import mlx.nn as nn
from mlx.utils import tree_unflatten

def convert(model):
    found = [(n, wrap(m)) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    model.update_modules(tree_unflatten(found))
""",
)
def module_dict_walk(source: SourceFile) -> Hits:
    """Modules looked for in `__dict__`.

    An MLX module is itself a dict, and keeps its parts there, not among its attributes:
    `vars(module)` and `module.__dict__` hold none of them. A converter that walks them converts
    nothing (seed 001).
    """
    for loop in source.of(ast.For, ast.comprehension):
        walked = _walked(source, loop.iter)
        scope = source.scope(loop)
        if walked is None:
            continue
        asked = [
            call.args for call in source.calls("isinstance", within=scope) if len(call.args) == 2
        ]
        parts = source.names_in(loop.target)
        is_asked = any(
            isinstance(part, ast.Name)
            and part.id in parts
            and any(source.name_of(name).startswith("mlx.nn.") for name in source.parts(kinds))
            for part, kinds in asked
        )
        # A function that asks for dicts, too, has seen that modules are dicts.
        is_sound = any("dict" in source.names_in(kinds) for _, kinds in asked)
        if is_asked and not is_sound:
            yield walked, "an MLX module keeps its parts as dict items: use named_modules()"


def _walked(source: SourceFile, node: ast.expr) -> ast.AST | None:
    """`X.__dict__` or `vars(X)` of `X.__dict__.items()`, `list(vars(X).values())`."""
    if source.is_call(node, "list", "tuple", "sorted") and node.args:
        node = node.args[0]
    match node:
        case ast.Call(func=ast.Attribute(attr="items" | "values", value=held)):
            is_dict = isinstance(held, ast.Attribute) and held.attr == "__dict__"
            return held if is_dict or source.is_call(held, "vars") else None
    return None


@rule(
    Severity.WARNING,
    """
import mlx.nn as nn

class Model(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def trainable_parameters(self):
        return {"head": self.head.parameters()}
""",
    {
        '\n    def trainable_parameters(self):\n        return {"head": self.head.parameters()}': (
            "        self.body.freeze()"
        )
    },
)
def own_trainable_parameters(source: SourceFile) -> Hits:
    """A module that replaces `trainable_parameters`.

    MLX keeps itself what is frozen, in each module. A method of the class's own is asked where the
    model stands alone; as a part of a larger one it is passed over, and all that it left out is
    trained. Nor does `freeze()` have a say in it (seed 004).
    """
    for method in source.of(ast.FunctionDef):
        made = source.parent(method)
        if method.name != "trainable_parameters" or not isinstance(made, ast.ClassDef):
            continue
        match method.body[-1]:
            case ast.Return(value=ast.Call() as call) if source.is_call(
                call, ".trainable_parameters"
            ):
                continue
        if any(source.is_named(base, "mlx.nn.Module") for base in made.bases):
            yield method, f"{made.name} has its own trainable_parameters: use freeze and unfreeze"


@rule(
    Severity.ERROR,
    """
import mlx.core as mx
from mlx.utils import tree_flatten

def save(model, path):
    mx.save_safetensors(path, dict(model.trainable_parameters()))
""",
    {"dict(model.trainable_parameters())": "dict(tree_flatten(model.trainable_parameters()))"},
)
def saved_nested(source: SourceFile) -> Hits:
    """Nested parameters given to a file format that is flat.

    `parameters()` and `trainable_parameters()` return dicts of dicts and lists.
    `mx.save_safetensors` takes one dict of arrays by name, `mx.savez` arrays by keyword, `mx.save`
    one array: all end with an error, after the training is done.
    `dict(tree_flatten(model.trainable_parameters()))` is flat.
    """
    saves = ("mlx.core.save", "mlx.core.save_safetensors", "mlx.core.save_gguf")
    saved = [(call, call.args[1:2]) for call in source.calls(*saves)]
    saved += [
        (call, [given.value for given in call.keywords if given.arg is None])
        for call in source.calls("mlx.core.savez", "mlx.core.savez_compressed")
    ]
    for call, arrays in saved:
        if any(_is_nested(source, node) for node in arrays):
            yield call, "these parameters are nested: dict(tree_flatten(...)) makes them flat"


def _is_nested(source: SourceFile, node: ast.expr) -> bool:
    match source.values(node):
        case [ast.Call(func=ast.Name(id="dict"), args=[inner], keywords=[])]:
            return source.are_parameters(inner)
    return source.are_parameters(node)
