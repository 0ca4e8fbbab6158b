"""A name of PyTorch that MLX does not have.

`mx.no_grad`, `nn.CrossEntropyLoss`, `nn.ModuleList`: code carried over from PyTorch reads well and
stops at the first such line with an AttributeError. What MLX has in its place is said beside it.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.CrossEntropyLoss()(model(inputs), targets)
"""
GOOD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")
"""
#: Name -> what to write in its place.
IN_PLACE = {
    "mlx.core.no_grad": "nothing: arrays keep no gradient",
    "mlx.core.inference_mode": "nothing: arrays keep no gradient",
    "mlx.core.tensor": "mx.array",
    "mlx.core.cat": "mx.concatenate",
    "mlx.core.manual_seed": "mx.random.seed",
    "mlx.core.from_numpy": "mx.array",
    "mlx.core.randn": "mx.random.normal",
    "mlx.core.rand": "mx.random.uniform",
    "mlx.core.multinomial": "mx.random.categorical",
    "mlx.core.clamp": "mx.clip",
    "mlx.core.unsqueeze": "mx.expand_dims",
    "mlx.core.bmm": "mx.matmul",
    "mlx.core.relu": "nn.relu",
    "mlx.core.log_softmax": "nn.log_softmax",
    "mlx.core.gather": "mx.take_along_axis",
    "mlx.nn.ModuleList": "a list: MLX finds modules in lists",
    "mlx.nn.ModuleDict": "a dict: MLX finds modules in dicts",
    "mlx.nn.Parameter": "an mx.array, which as an attribute is a parameter",
    "mlx.nn.functional": "functions of nn and nn.losses",
    "mlx.nn.CrossEntropyLoss": 'nn.losses.cross_entropy(..., reduction="mean")',
    "mlx.nn.NLLLoss": "nn.losses.nll_loss",
    "mlx.nn.MSELoss": "nn.losses.mse_loss",
    "mlx.nn.L1Loss": "nn.losses.l1_loss",
    "mlx.nn.BCELoss": "nn.losses.binary_cross_entropy(..., with_logits=False)",
    "mlx.nn.BCEWithLogitsLoss": "nn.losses.binary_cross_entropy",
    "mlx.nn.utils.clip_grad_norm_": "optim.clip_grad_norm, which returns the clipped gradients",
    "mlx.nn.utils.clip_grad_norm": "optim.clip_grad_norm, which returns the clipped gradients",
    "mlx.optimizers.lr_scheduler": "optim.cosine_decay and the others, as the learning_rate",
    "mlx.optimizers.clip_grad_norm_": "optim.clip_grad_norm, which returns the clipped gradients",
}
LASTS = frozenset(name.rpartition(".")[2] for name in IN_PLACE)
#: How they are written: short names after a dot or an import; `nn.relu` there is.
_SHORT = frozenset(one for one in LASTS if len(one) < 8)
_WRITTEN = "|".join(
    [
        *(LASTS - _SHORT),
        *(f" import {one}" for one in _SHORT),
        *(f".{one}(" for one in _SHORT - {"relu"}),
        "core.relu",
        "mx.relu",
    ]
)


@rule(severity=Severity.ERROR, symptom="step-update.failed", bad=BAD, good=GOOD, words=(_WRITTEN,))
def missing_in_mlx(source: SourceFile) -> Hits:
    """The full name, imports resolved; not where the file asks whether it is there."""
    for node in source.of(ast.ImportFrom):
        for one in node.names:
            name = f"{node.module}.{one.name}"
            if not node.level and name in IN_PLACE and not _asked(source, node):
                yield node, _said(name)
    for used in source.of(ast.Attribute):
        if used.attr not in LASTS or not isinstance(used.value, ast.Name | ast.Attribute):
            continue
        name = source.name_of(used)
        if name in IN_PLACE and isinstance(used.ctx, ast.Load) and not _asked(source, used):
            yield used, _said(name)


def _said(name: str) -> str:
    return f"MLX has no {name}: write {IN_PLACE[name]}"


def _asked(source: SourceFile, node: ast.AST) -> bool:
    """Whether a `try` or a `hasattr` stands around it."""
    above: ast.AST | None = node
    while above is not None and not isinstance(above, ast.FunctionDef | ast.Module):
        above = source.parents.get(above)
        if isinstance(above, ast.Try):
            return True
        if isinstance(above, ast.If | ast.IfExp) and "hasattr" in ast.unparse(above.test):
            return True
    return False
