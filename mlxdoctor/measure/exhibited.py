"""The losses of a log, as the exhibit that a report shows of them."""

import math
from collections.abc import Iterator

import numpy as np

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment
from mlxdoctor.exhibits import Curve, Floor, LossCurve

#: Points a curve is drawn with at most; more would be closer than a pixel.
MAX_POINTS = 1_000


def losses_shown(
    segment: Segment, base: BaseModel | None, rows: SupervisedRows | None
) -> Iterator[LossCurve]:
    """The curves of a log's segment, and what they can be compared with."""
    train, val = _curve(segment, "train_loss"), _curve(segment, "val_loss")
    if train is None and val is None:
        return
    start, floors = segment.base_val_loss, []
    if start is not None and math.isfinite(start):
        floors.append(Floor("the base model's own loss", start))
    if base is not None and base.vocab_size:
        guess = f"uniform guess, ln({base.vocab_size:,})"
        floors.append(Floor(guess, math.log(base.vocab_size)))
    if rows is not None and math.isfinite(entropy := rows.unigram_entropy()):
        floors.append(Floor("best constant guess", entropy))
    yield LossCurve(train, val, None, tuple(floors), segment.axis)


def _curve(segment: Segment, name: str) -> Curve | None:
    """The points to draw: all, or the lowest and highest of each stretch.

    A stretch with a value that is not finite keeps the first of those too.
    """
    series = segment.get(name)
    if series is None:
        return None
    values, points = series.values, np.arange(len(series))
    if len(points) > MAX_POINTS:
        kept = [points[[0, -1]]]
        for stretch in np.array_split(points, MAX_POINTS // 2):
            is_finite = np.isfinite(values[stretch])
            by_size = stretch[is_finite][values[stretch[is_finite]].argsort()]
            kept += [by_size[:1], by_size[-1:], stretch[~is_finite][:1]]
        points = np.array(sorted(set(np.concatenate(kept).tolist())))
    return Curve(tuple(series.iterations[points].tolist()), tuple(values[points].tolist()))
