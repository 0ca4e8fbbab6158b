"""An adapter made weaker and stronger, on the fixture's base model."""

from __future__ import annotations

import numpy as np

from mlxdoctor.models.adapter_scales import AdapterScales
from mlxdoctor.models.losses import RowLosses
from mlxdoctor.run import Run
from tests.conftest import RUNS


def tuned(rows: tuple[RowLosses, ...]) -> list[float]:
    return [float(row.tuned.next.mean()) for row in rows if row.tuned is not None]


def test_without_its_strength_the_tuned_model_is_the_base() -> None:
    scales = Run.discover([RUNS / "healthy-ordinary"]).get(AdapterScales)
    assert scales is not None
    rows = scales.rows("valid")[:4]
    off = scales.measure(rows, 0.0)
    np.testing.assert_allclose(tuned(off), [row.base.next.mean() for row in rows], rtol=1e-3)
    np.testing.assert_allclose(tuned(scales.measure(rows, 1.0)), tuned(rows), rtol=1e-3)
    assert min(tuned(scales.measure(rows, 4.0))) > max(tuned(rows))


def test_a_fully_tuned_model_has_none() -> None:
    run = Run.discover([RUNS / "adapter-never-attached"])
    assert run.get(AdapterScales) is None
