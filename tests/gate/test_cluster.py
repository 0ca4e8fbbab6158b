"""The gate on a Dask scheduler of its own, with four worker processes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxdoctor.formats.format import text_of
from mlxdoctor.gate.examine import Examined, Options
from mlxdoctor.gate.gating import run_gate
from mlxdoctor.gate.policy import Policy
from mlxdoctor.gate.workers import cluster, examine_all
from mlxdoctor.gate_result import GateResult
from tests.conftest import RUNS
from tests.gate.given import by_name, told

distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")

pytestmark = pytest.mark.slow
WORKERS = 4
#: Runs that are sound, and some that failed.
PATHS = ("healthy-ordinary", "rate-too-low", "scale-too-large", "missing-end-token")


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a scheduler with four workers, each a process."""
    dask = pytest.importorskip("dask")
    with (
        # A busy machine takes long to start four processes.
        dask.config.set({"distributed.comm.timeouts.connect": "120s"}),
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None
        ) as local,
    ):
        local.wait_for_workers(WORKERS, timeout=300)
        yield local.scheduler_address


def told_of(result: GateResult) -> dict[str, tuple[object, ...]]:
    """What becomes of each item, and why."""
    return {
        one.path: (
            one.status,
            bool(one.reasons),
            [(found.finding.code, found.finding.where, found.ruling) for found in one.findings],
        )
        for one in result.items
    }


def test_the_verdicts_are_those_of_one_process(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RUNS)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapters.safetensors").write_bytes(b"\x10" + bytes(40))
    paths = [*PATHS, str(broken), str(tmp_path / "none")]
    alone, spread = (
        run_gate(paths, Policy(tmp_path), options=options)[0]
        for options in (Options(jobs=1), Options(cluster=scheduler))
    )
    assert len({one.status for one in alone.items}) > 2
    assert told_of(spread) == told_of(alone)
    assert spread.notices == alone.notices
    # Items are named as from here, not as from where a worker runs.
    assert str(RUNS) not in text_of(spread, "json")


def test_a_worker_that_is_killed_costs_no_result(scheduler: str) -> None:
    items = [*(f"slow-{number}" for number in range(24)), "broken"]
    found: dict[int, Examined] = {}
    with distributed.Client(scheduler) as client:
        processes = list(client.run(os.getpid).values())
    assert len(processes) == WORKERS

    def finished(number: int, one: Examined) -> None:
        assert number not in found
        found[number] = one
        if len(found) == 3:
            os.kill(processes[0], signal.SIGKILL)

    workers = cluster(scheduler, by_name)
    assert workers.most == 2 * WORKERS
    examine_all(items, workers, finished)
    assert [told(found[number])["path"] for number in range(24)] == items[:24]
    assert "its worker was lost (RuntimeError)" in found[24].problem
