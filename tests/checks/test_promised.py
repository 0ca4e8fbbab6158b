"""A run against what preflight promised of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.cli import main
from mlxdoctor.evidence.promise import Promise
from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES

LOG = (
    "Iter 10: Train loss 2.1, Learning Rate 1e-4, It/sec {pace}, Tokens/sec 900, "
    "Trained Tokens 900, Peak mem {peak} GB\n"
    "Iter 20: Train loss 1.9, Learning Rate 1e-4, It/sec {pace}, Tokens/sec 900, "
    "Trained Tokens 1800, Peak mem {peak} GB\n"
    "Iter 30: Train loss 1.8, Learning Rate 1e-4, It/sec {pace}, Tokens/sec 900, "
    "Trained Tokens 2700, Peak mem {peak} GB\n"
)


@pytest.mark.parametrize(
    ("peak", "pace", "codes"),
    [
        (1.1, 2.0, set()),
        (1.6, 2.0, {"promised.more-memory"}),
        (0.9, 0.2, {"promised.slower"}),
    ],
)
def test_memory_and_pace(tmp_path: Path, peak: float, pace: float, codes: set[str]) -> None:
    log, promise = tmp_path / "train.log", tmp_path / "preflight.json"
    log.write_text(LOG.format(peak=peak, pace=pace))
    content = {"file": "mlxdoctor-preflight", "peak": 1_000_000_000}
    promise.write_text(json.dumps({**content, "seconds_an_iteration": [0.4, 0.6]}))
    for paths in ([log, promise], [tmp_path]):
        report = diagnose(paths, allow_model=False)
        assert {one.code for one in report.findings if one.code.startswith("promised.")} == codes


@pytest.mark.parametrize(("rate", "is_slow"), [(900, False), (30, True)])
def test_a_log_without_a_speed_has_tokens(tmp_path: Path, rate: int, is_slow: bool) -> None:
    """900 tokens in ten iterations: 90 an iteration, in 0.1 s or in 3."""
    lines = [
        json.dumps(
            {"iteration": at, "train_loss": 2.0, "tokens_per_second": rate, "trained_tokens": n}
        )
        for at, n in ((10, 900), (20, 1800), (30, 2700))
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    content = {"file": "mlxdoctor-preflight", "peak": 10**9, "seconds_an_iteration": [0.4, 0.6]}
    (tmp_path / "preflight.json").write_text(json.dumps(content))
    report = diagnose([tmp_path], allow_model=False)
    assert ("promised.slower" in {one.code for one in report.findings}) == is_slow


@pytest.mark.parametrize(("told", "codes"), [(1.9, set()), (1.4, {"promised.other-loss"})])
def test_an_early_loss(tmp_path: Path, told: float, codes: set[str]) -> None:
    (tmp_path / "train.log").write_text(LOG.format(peak=1.0, pace=2.0))
    content = {"file": "mlxdoctor-preflight", "peak": 10**9, "loss_at": [20, told]}
    (tmp_path / "preflight.json").write_text(json.dumps(content))
    report = diagnose([tmp_path], allow_model=False)
    found = {one.code for one in report.findings if one.code.startswith("promised.")}
    assert found == codes
    # No report at that iteration: nothing is compared.
    (tmp_path / "preflight.json").write_text(json.dumps({**content, "loss_at": [15, told]}))
    again = diagnose([tmp_path], allow_model=False)
    assert not [one for one in again.findings if one.code.startswith("promised.")]


def test_what_preflight_writes_is_read(tmp_path: Path) -> None:
    config = FIXTURES / "configs" / "healthy-ordinary.yaml"
    assert main(["preflight", str(config), "-o", str(tmp_path)]) == 0
    promise = Promise.read(tmp_path / "healthy-ordinary" / "preflight.json")
    assert 5_000_000 < promise.peak < 50_000_000


def test_what_is_no_promise(tmp_path: Path) -> None:
    (tmp_path / "preflight.json").write_text('{"peak": 1}')
    with pytest.raises(InputError, match="is not what preflight writes"):
        Promise.read(tmp_path / "preflight.json")
