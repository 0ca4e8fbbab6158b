"""Whether an update is too large for the weights that it is added to.

The checks ask it of an adapter and of its saves, bisect of each save. Two sizes are judged:
‖ΔW‖/‖W‖ where the base model is at hand, else ‖ΔW‖/sqrt(min(in, out)), the norm that weights
of the same shape usually have.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlxdoctor.check import limit


@dataclass(frozen=True)
class Limits:
    """When an update is too large for the weights that it is added to."""

    nominal_large: float = limit(
        4.0,
        unit="‖ΔW‖/sqrt(min(in, out)), median over modules",
        source="38 runs of mlx-lm on a 0.48 M-parameter Llama: healthy ones reach 1.3 and "
        "collapsed ones begin at 3.0",
        false_alarms="0 of 19 healthy runs; 0 of 126 sound runs of four base models: 0.9 at most",
    )
    nominal_exploded: float = limit(
        5.0,
        unit="‖ΔW‖/sqrt(min(in, out)), median over modules, for an error",
        source="a run damaged by its scale is at 7.1, one that repeats one token at 23; sound "
        "weights of large models are smaller than such weights, and their updates are, too",
        false_alarms="0 of 19 healthy runs; 0 of 126 sound runs of four base models: 0.9 at most",
    )
    exploded: float = limit(
        3.0,
        unit="‖ΔW‖/‖W‖, median over modules",
        source="38 runs of mlx-lm on a 0.48 M-parameter Llama: healthy ones reach 1.7, ones "
        "damaged by their scale end at 2.0 to 3.8, collapsed ones begin at 4.1. 30 runs of four "
        "base models end above it, at 4.8 to 960: their answers' likeness to the right ones is "
        "0.05 to 0.44, that of sound runs 0.8 to 0.9",
        false_alarms="0 of 98 healthy runs of three base models; saves of 126 of four reach 1.3",
    )
    large: float = limit(
        1.8,
        unit="‖ΔW‖/‖W‖, median over modules",
        source="the same runs, and three at five times a sound scale: 2.0 to 2.8; runs at 1.8 to "
        "2.9 are impaired, some not for good",
        false_alarms="0 of 98 healthy runs of three base models",
    )
