"""Code or pickles beside the weights, which a loader may run.

What it finds. Configurations that name Python of their own (`model_file`, `auto_map`), a run
that was told to trust such code (`trust_remote_code`), and files that are pickles by their
names (`.bin`, `.pt`, `.pkl`, …), in the run's folder, the base model's and a fused model's.

Why it matters. A model whose folder brings code can do anything on the machine that loads it:
mlx-lm before 0.32 runs `model_file` without asking. A pickle runs what it says when it is opened.

How it is measured. By names and keys alone. Nothing is opened as a pickle, and no code is run
here: a model that asks for code of its own is examined from its files, and not generated with.

When it is wrong. Code from a publisher that you trust is no fault, and PyTorch trainers leave
`optimizer.pt` and `training_args.bin` beside their checkpoints: so this is a note or a
warning, never an error.

What to do. Read the code before you load the model with `trust_remote_code`. Save pickled
weights as safetensors, and leave pickles out of what you publish.
"""

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.code_files import TRUST, RemoteCode
from mlxdoctor.finding import Severity, Sign, Symptom, some_of
from mlxdoctor.safety.quoting import quoted


@check(
    codes={
        "named": Symptom.warning(
            "a configuration asks for code that comes with the model, or allows it to run",
            says="{file} asks for code of the model: {key} is {value}. Nothing of it was run.",
        ),
        "pickles": Symptom.info(
            "files that are pickles lie beside the weights",
            says="Pickles lie beside the weights: {files}. They were not opened.",
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
    if remote.pickles:
        files = some_of([path.name for path in remote.pickles])
        yield Sign("pickles", {"count": len(remote.pickles), "files": files})
