"""A module that replaces `trainable_parameters`.

MLX keeps itself what is frozen, in each module. A method of the class's own is asked where the
model stands alone; as a part of a larger one it is passed over, and all that it left out is
trained. Nor does `freeze()` have a say in it.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

BAD = """
import mlx.nn as nn

class Model(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def trainable_parameters(self):
        return {"head": self.head.parameters()}
"""
GOOD = BAD[: BAD.index("\n    def trainable")] + "        self.body.freeze()\n"


@rule(Severity.WARNING, BAD, GOOD, symptoms=("step-state.own-bookkeeping",))
def own_trainable_parameters(source: SourceFile) -> Hits:
    """A method of that name in a class derived from a module, and it does not just hand on."""
    for method in source.of(ast.FunctionDef):
        made = source.parent(method)
        if method.name != "trainable_parameters" or not isinstance(made, ast.ClassDef):
            continue
        last = method.body[-1]
        hands_on = (
            isinstance(last, ast.Return)
            and last.value is not None
            and source.is_call(last.value, ".trainable_parameters")
        )
        if not hands_on and any(source.is_named(base, "mlx.nn.Module") for base in made.bases):
            yield method, f"{made.name} has its own trainable_parameters: use freeze and unfreeze"
