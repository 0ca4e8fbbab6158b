"""A learning-rate schedule that is made and given to no optimizer.

The run then trains at whatever rate the optimizer got: without warm-up and without decay, while
the configuration, and perhaps the log, say otherwise. A schedule is the optimizer's
`learning_rate`: `optim.AdamW(learning_rate=schedule)`.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.rules.adapter_without_freeze import OPTIMIZERS

BAD = """
import mlx.optimizers as optim

def make_optimizer(learning_rate, steps):
    schedule = optim.cosine_decay(learning_rate, steps)
    return optim.AdamW(learning_rate=learning_rate)
"""
GOOD = """
import mlx.optimizers as optim

def make_optimizer(learning_rate, steps):
    schedule = optim.cosine_decay(learning_rate, steps)
    return optim.AdamW(learning_rate=schedule)
"""
SCHEDULES = tuple(
    f"mlx.optimizers.{where}{name}"
    for where in ("", "schedulers.")
    for name in (
        "cosine_decay", "linear_schedule", "exponential_decay", "step_decay", "join_schedules",
    )
)  # fmt: skip


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD, words=("optim", "schedul|decay|linear"))
def schedule_unused(source: SourceFile) -> Hits:
    """The name it is given is read nowhere in the function, which makes an optimizer as well."""
    for made in source.calls(*SCHEDULES):
        above = source.parents.get(made)
        scope = source.scope(made)
        if not (isinstance(above, ast.Assign) and isinstance(scope, Function)):
            continue
        target = above.targets[0]
        if not isinstance(target, ast.Name) or not any(source.calls(*OPTIMIZERS, within=scope)):
            continue
        read = any(
            node.id == target.id and isinstance(node.ctx, ast.Load)
            for node in source.of(ast.Name, within=scope)
        )
        if not read:
            yield made, f"{target.id} is given to no optimizer: the rate is not what it says"
