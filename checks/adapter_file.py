"""Whether the adapter that a configuration speaks of is there.

What it finds. An adapter_config.json without any weights: no file of factors, no checkpoint, no
model that they were merged into.

Why it matters. A folder of an adapter without its weights passes for one that was never faulty.
mlx-lm stops at it, and what was to be published is not there.

How it is measured. The files of the folder are looked at; mlx-lm writes adapter_config.json when
training begins, and the weights beside it.

When it is wrong. A run that has just begun has saved nothing yet, and people hand on what shows a
failure without the weights: where there is a log, or an answer, nothing is said.

What to do. Copy the weights as well: a link to them, or a pointer of Git LFS, is not enough.
"""

from collections.abc import Iterator

from mlxdoctor.check import DoesNotArise, NotApplicable, check
from mlxdoctor.evidence.adapter import FILE_NAMES, Adapter
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.models.generations import Generations

_WEIGHTS = (".safetensors", ".npz", ".bin", ".pt")


@check(
    codes={
        "absent": Symptom.error(
            "there is the configuration of an adapter, and no adapter",
            says="There is {where} and no weights: mlx-lm finds no adapter to load.",
            expected=f"{FILE_NAMES[0]} beside {CONFIG_NAME}",
            fix=f"copy {FILE_NAMES[0]} into the folder, the file itself and no link to it",
        )
    },
)
def adapter_file(
    config: TrainingConfig,
    *,
    adapter: Adapter | None,
    history: CheckpointHistory | None,
    tuned: TunedModel | None,
    log: TrainingLog | None,
    answers: Generations | None,
    planned: PlannedRun | None,
) -> Iterator[Sign]:
    if planned is not None:
        raise DoesNotArise("the run is planned")
    if config.path.name != CONFIG_NAME:
        raise DoesNotArise(f"there is no {CONFIG_NAME}")
    if adapter is not None or history is not None or tuned is not None:
        return
    if any(file.suffix in _WEIGHTS for file in config.path.parent.iterdir()):
        raise NotApplicable("there are weights, and they can't be read as an adapter's")
    if log is not None:
        raise NotApplicable("there is a log, and the run may not have saved yet")
    if answers is not None:
        raise NotApplicable("there are answers, given by weights that lie elsewhere")
    yield Sign("absent", {"files": 0}, where=config.path.name)
