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


@rule(
    severity=Severity.WARNING,
    symptom="step-state.own-bookkeeping",
    bad=BAD,
    good=GOOD,
    words=("def trainable_parameters",),
)
def own_trainable_parameters(source: SourceFile) -> Hits:
    """A method of that name in a class derived from a module, and it does not just hand on."""
    for node in source.of(ast.ClassDef):
        if not any(source.is_named(base, "mlx.nn.Module") for base in _bases(source, node)):
            continue
        for one in node.body:
            if (
                isinstance(one, ast.FunctionDef)
                and one.name == "trainable_parameters"
                and not _hands_on(source, one)
            ):
                yield one, f"{node.name} has its own trainable_parameters: use freeze and unfreeze"


def _bases(source: SourceFile, first: ast.ClassDef) -> list[ast.expr]:
    """The bases of a class, and of those of its bases that this file defines."""
    return [base for one in source.family(first) for base in one.bases]


def _hands_on(source: SourceFile, method: ast.FunctionDef) -> bool:
    """`return self.model.trainable_parameters()`."""
    last = method.body[-1]
    return isinstance(last, ast.Return) and source.is_call(
        last.value or last, ".trainable_parameters"
    )
