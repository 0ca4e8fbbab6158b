"""The reference trainer: LoRA fine-tuning with MLX, readable in one sitting.

The sitting: `loop` (the run), `step` (one update, compiled), `batches` and `masked_loss`
(what it learns from). Around it: `settings` (what a run is told), `token_rows` (the data),
`attach` (freeze, convert, verify), `plan`, `stopping` and `records` (what is reported and
written). `parts` lists what an experiment may replace.

    from mlxdoctor.train import Settings, train

    result = train(Settings.read(Path("lora.yaml")))

Importing this package loads no MLX; `train` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.records import StepRecord, TrainingResult, ValidationRecord
from mlxdoctor.train.settings import Settings

if TYPE_CHECKING:
    from mlxdoctor.train.loop import Tell
    from mlxdoctor.train.parts import Parts
    from mlxdoctor.train.stopping import DivergenceLimits

__all__ = ["Settings", "StepRecord", "TrainingResult", "ValidationRecord", "train"]


def train(
    settings: Settings,
    *,
    parts: Parts | None = None,
    tell: Tell | None = None,
    limits: DivergenceLimits | None = None,
) -> TrainingResult:
    """Train as the settings say; see `mlxdoctor.train.loop.train`.

    Raises:
        InputError: a setting, the model, the data or the output folder is unusable, or
            MLX cannot be used here.
    """
    try:
        from mlxdoctor.train import loop
    except (ImportError, OSError) as error:
        problem = f"MLX cannot be used here ({error})"
        raise InputError(None, problem, "check with `python -c 'import mlx_lm'`") from None
    return loop.train(settings, parts=parts, tell=tell, limits=limits)
