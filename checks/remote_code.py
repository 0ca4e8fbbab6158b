"""Code beside the weights, which a loader may run.

What it finds. Configurations that name Python of their own (`model_file`, `auto_map`), and a run
that was told to trust such code (`trust_remote_code`), in the run's folder, the base model's and a
fused model's.

Why it matters. A model whose folder brings code can do anything on the machine that loads it:
mlx-lm before 0.32 runs `model_file` without asking.

How it is measured. By names and keys alone. No code is run here, and no pickle is opened: a model
that asks for code of its own is examined from its files, and not generated with.

When it is wrong. Code from a publisher that you trust is no fault: so this is a note or a warning,
never an error.

What to do. Read the code before you load the model with `trust_remote_code`.
"""

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.code_files import TRUST, RemoteCode
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.safety.quoting import quoted


@check(
    codes={
        "named": Symptom.warning(
            "a configuration asks for code that comes with the model, or allows it to run",
            says="{file} asks for code of the model: {key} is {value}. Nothing of it was run.",
        ),
    }
)
def remote_code(remote: RemoteCode) -> Iterator[Sign]:
    for code in remote.named:
        figures = {"file": code.path.name, "key": code.key, "value": quoted(code.value)}
        where = f"{code.path.parent.name}/{code.path.name}"
        # A run that allows code need not have met any.
        severity = Severity.INFO if code.key == TRUST else None
        yield Sign("named", figures, where=where, severity=severity)
