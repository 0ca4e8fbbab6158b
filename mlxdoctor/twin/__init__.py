"""The twin: what mlx-lm would compute from a base, rows, a configuration and a seed.

The reference trainer is readable in one sitting: `loop` (the run), `step` (one update,
compiled), `batches` and `masked_loss` (what it learns from). Around it: `settings` (what a run
is told), `token_rows` (the data), `attach` (freeze, convert), `parts` (what an experiment may
replace), `prepared` (a run before its first step) and `records` (what is reported and written).
What uses it: `rerun` (a recorded run made again with one change), `faults` (what goes wrong, put
in), `reach` (what rows teach in a few steps at a rate) and `predict` (memory and time).

    from mlxdoctor.twin import Settings, train

    result = train(Settings.read(Path("lora.yaml")))

Importing this package loads no MLX; `train` does.
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
        InputError: a setting, the model, the data or the output folder is unusable, or
            MLX cannot be used here.
    """
    try:
        from mlxdoctor.twin import loop
    except (ImportError, OSError) as error:
        problem = f"MLX cannot be used here ({error})"
        raise InputError(None, problem, "check with `python -c 'import mlx_lm'`") from None
    return loop.train(settings, parts=parts, tell=tell)
