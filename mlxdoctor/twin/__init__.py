"""The twin: what mlx-lm would compute from a base, rows, a configuration and a seed.

    from mlxdoctor.twin import Settings, train

    result = train(Settings.read(Path("lora.yaml")))

The reference trainer is read from `loop` on. Importing this package loads no MLX; `train` does.
"""

from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.records import StepRecord, Tell, TrainingResult, ValidationRecord
from mlxdoctor.twin.settings import Settings

__all__ = ["Settings", "StepRecord", "TrainingResult", "ValidationRecord", "train"]


def train(
    settings: Settings, *, parts: Parts | None = None, tell: Tell | None = None
) -> TrainingResult:
    """Train as the settings say; see `mlxdoctor.twin.loop.train`.

    Raises:
        InputError: as there, or MLX cannot be used here.
    """
    try:
        from mlxdoctor.twin import loop
    except (ImportError, OSError) as error:
        problem = f"MLX cannot be used here ({error})"
        raise InputError(None, problem, "check with `python -c 'import mlx_lm'`") from None
    return loop.train(settings, parts=parts, tell=tell)
