"""Every cause has an experiment, or a reason why there is none."""

from __future__ import annotations

import pytest

from mlxdoctor.causes import load_causes
from mlxdoctor.experiments import DIRECT
from mlxdoctor.reproduce.repair import REPAIRED

CAUSES = load_causes().causes


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_an_experiment_or_a_reason(name: str) -> None:
    cause = CAUSES[name]
    has_rerun = cause.change is not None or bool(cause.inject) or name in REPAIRED
    assert has_rerun or name in DIRECT or bool(cause.no_experiment)


@pytest.mark.model
def test_injections_and_repairs_exist() -> None:
    from mlxdoctor.reproduce.data_repairs import REPAIRS
    from mlxdoctor.reproduce.forms import FAULTS

    for cause in CAUSES.values():
        assert set(cause.inject) <= FAULTS.keys()
    assert REPAIRS.keys() == REPAIRED
