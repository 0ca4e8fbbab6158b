"""A module that replaces `trainable_parameters`.

MLX keeps itself what is frozen, in each module. A method of the class's own is asked where the
model stands alone; as a part of a larger one it is passed over, and all that it left out is
trained. Nor does `freeze()` have a say in it.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

class Model(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

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
