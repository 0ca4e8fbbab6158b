"""The small base with an adapter, and what its probes are asked."""

from typing import Any

import mlx.optimizers as optim
import pytest

from fixtures.trainers.common import load_with_adapter
from mlxdoctor import probe
from mlxdoctor.finding import Severity
from mlxdoctor.probe.probing import ProbeResult


@pytest.fixture(scope="module")
def base() -> tuple[Any, Any]:
    return load_with_adapter()


def codes(result: ProbeResult, least: Severity = Severity.WARNING) -> list[str]:
    return [one.code for one in result.findings if one.severity.rank >= least.rank]


def probed(base: tuple[Any, Any], loss: Any, batch: Any, **more: Any) -> ProbeResult:
    return probe(base[0], loss, batch, optim.Adam(1e-4), base[1], **more)
