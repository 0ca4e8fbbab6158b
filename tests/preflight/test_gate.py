from pathlib import Path

from mlxdoctor.gate.gating import run_gate
from mlxdoctor.gate.policy import Policy, Rules
from mlxdoctor.preflight.configuration import is_plan
from tests.conftest import RUNS
from tests.preflight.small_run import written


def test_configurations_are_items_beside_runs(tmp_path: Path) -> None:
    items = [
        written(tmp_path, "sound"),
        written(tmp_path, "too-fast", learning_rate=0.05),
        written(tmp_path, "elsewhere", data="someone/some-data"),
        RUNS / "healthy-ordinary",
    ]
    policy = Policy(tmp_path, rules=Rules(require=frozenset({"weight-drift"})))
    result = run_gate([*map(str, items)], policy)[0]
    assert [str(one.status) for one in result.items] == [
        *("passed", "failed", "inconclusive", "passed"),
    ]
    assert "learning-rate.above-guideline" in result.items[1].reasons[0]
    assert "training data" in result.items[2].reasons[0]


def test_what_is_a_plan(tmp_path: Path) -> None:
    assert is_plan(written(tmp_path))
    assert not is_plan(RUNS / "healthy-ordinary" / "adapter_config.json")
    assert not is_plan(tmp_path)
    log = tmp_path / "log.json"
    log.write_text('[{"iteration": 1, "train_loss": 2.0, "learning_rate": 1e-5}]')
    assert not is_plan(log)
