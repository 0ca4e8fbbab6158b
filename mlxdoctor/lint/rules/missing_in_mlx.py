"""A name of PyTorch that MLX does not have.

`mx.no_grad`, `nn.CrossEntropyLoss`, `nn.ModuleList`: code carried over from PyTorch reads well and
stops at the first such line with an AttributeError. What MLX has in its place is said beside it.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

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


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.failed",))
def missing_in_mlx(source: SourceFile) -> Hits:
    """The full name, imports resolved; not where the file asks whether it is there."""
    for node in source.of(ast.ImportFrom):
        for alias in node.names if not node.level else ():
            name = f"{node.module}.{alias.name}"
            if name in IN_PLACE and not _is_asked(source, node):
                yield node, f"MLX has no {name}: write {IN_PLACE[name]}"
    lasts = {name.rpartition(".")[2] for name in IN_PLACE}
    for used in source.of(ast.Attribute):
        if used.attr in lasts and isinstance(used.ctx, ast.Load):
            name = source.name_of(used)
            if name in IN_PLACE and not _is_asked(source, used):
                yield used, f"MLX has no {name}: write {IN_PLACE[name]}"


def _is_asked(source: SourceFile, node: ast.AST) -> bool:
    """Whether a `try` or a `hasattr` stands around it."""
    above = source.enclosing(node, ast.Try, ast.If, ast.IfExp)
    while isinstance(above, ast.If | ast.IfExp) and "hasattr" not in ast.unparse(above.test):
        above = source.enclosing(above, ast.Try, ast.If, ast.IfExp)
    return above is not None
