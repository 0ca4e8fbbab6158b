"""Loss and gradients taken in the wrong order.

What `value_and_grad` makes returns the value first, then the gradients. Unpacked the other way
round, the loss goes into the optimizer as if it were gradients, and the step fails.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import DIFFERENTIATING
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

def step(model, optimizer, loss_fn, batch):
    grads, loss = nn.value_and_grad(model, loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss
"""
GOOD = BAD.replace("grads, loss =", "loss, grads =")


@rule(
    severity=Severity.ERROR,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad", "grad"),
)
def results_swapped(source: SourceFile) -> Hits:
    """Two names, the first of which says gradient and the second loss or value."""
    for made in source.calls(*DIFFERENTIATING[:2]):
        for use in source.uses_of(made):
            above = source.parents.get(use)
            if not isinstance(above, ast.Assign) or source.values(use.func) != [made]:
                continue
            target = above.targets[0]
            if isinstance(target, ast.Tuple) and len(target.elts) == 2:
                first, second = (ast.unparse(one).lower() for one in target.elts)
                says_loss = "loss" in second or "value" in second
                if "grad" in first and says_loss and "grad" not in second:
                    yield above, "the value comes first: loss, grads = ..."
