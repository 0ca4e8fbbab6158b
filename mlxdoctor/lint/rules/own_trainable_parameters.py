"""A module that replaces `trainable_parameters`.

MLX keeps itself what is frozen: `nn.value_and_grad`, the optimizer and the saving of weights ask
for it in different ways. With a method of the class's own, they no longer agree on what is trained.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

class Model(nn.Module):
    def trainable_parameters(self):
        return {"head": self.head.parameters()}
"""
GOOD = """
import mlx.nn as nn

class Model(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head
        self.body.freeze()
"""


@rule(severity=Severity.WARNING, symptom="step-state.own-bookkeeping", bad=BAD, good=GOOD)
def own_trainable_parameters(source: SourceFile) -> Hits:
    """A method of that name in a class derived from a module."""
    for node in source.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        if not any(source.name_of(base).endswith("Module") for base in node.bases):
            continue
        for one in node.body:
            if isinstance(one, ast.FunctionDef) and one.name == "trainable_parameters":
                yield one, f"{node.name} has its own trainable_parameters: use freeze and unfreeze"
