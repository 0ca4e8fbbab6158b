"""A configuration in, an answer out."""

import argparse
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

import mlxdoctor
from fixtures.lab.cases.workshop import rows_of, write_rows
from mlxdoctor.gate.gating import run_gate
from mlxdoctor.gate.policy import Policy, Rules
from mlxdoctor.preflight.configuration import is_plan
from mlxdoctor.report import Fix, Report
from mlxdoctor.safety.errors import InputError
from mlxdoctor.verdict import Readiness
from tests.conftest import RUNS, Call, digest
from tests.preflight.small_run import SOUND, written

#: Writes a configuration, sound but for what is named.
Plan = Callable[..., Path]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return partial(written, tmp_path)


def test_a_folder_with_one_configuration_is_that_configuration(plan: Plan, tmp_path: Path) -> None:
    """A person names the folder that the file lies in; of two, neither is taken."""
    folder = tmp_path / "cfg"
    folder.mkdir()
    with pytest.raises(InputError, match="holds no training configuration"):
        mlxdoctor.preflight(folder)
    (folder / "lora.yaml").write_text(plan(learning_rate=3e-2).read_text())
    (folder / "notes.yaml").write_text("owner: us\n")
    assert readiness(mlxdoctor.preflight(folder)) is Readiness.NOT_READY
    (folder / "other.yaml").write_text(plan().read_text())
    with pytest.raises(InputError, match=r"holds 2 configurations \(lora.yaml, other.yaml\)"):
        mlxdoctor.preflight(folder)


def readiness(report: Report) -> Readiness | None:
    return report.planned.readiness if report.planned is not None else None


def not_ready(report: Report) -> tuple[str, Fix]:
    """The cause that a run would fail of, and what to change."""
    assert readiness(report) is Readiness.NOT_READY
    return report.root.cause.id, report.fix


def test_nobody_is_asked_for_a_log_before_the_run(plan: Plan) -> None:
    for report in (mlxdoctor.preflight(plan()), mlxdoctor.preflight(plan(data="a/b"))):
        told = str(report.to_dict()["coverage"]) + str(report.missing) + str(report.next)
        assert "--log" not in told
        assert "--adapter" not in told
    assert "dataset" in [one.kind for one in report.missing]


def test_not_ready_and_the_line_to_change(plan: Plan) -> None:
    report = mlxdoctor.preflight(plan(learning_rate=0.03))
    cause, fix = not_ready(report)
    assert (cause, fix.before) == ("learning-rate-too-high", {"learning_rate": 0.03})
    assert "-learning_rate: 0.03" in fix.diff.splitlines()
    after = {**SOUND, **fix.after}
    assert readiness(mlxdoctor.preflight(after)) is Readiness.READY


def test_a_rate_is_changed_where_the_schedule_has_it(plan: Plan) -> None:
    cosine = {"name": "cosine_decay", "arguments": [0.06, 400, 1e-6], "warmup": 20}
    report = mlxdoctor.preflight(plan(learning_rate=None, lr_schedule=cosine))
    (changed,) = not_ready(report)[1].after.items()
    assert changed[0] == "lr_schedule.arguments"
    assert changed[1][1:] == [400, 1e-6]
    fixed = {**SOUND, "learning_rate": None, "lr_schedule": {**cosine, "arguments": changed[1]}}
    assert readiness(mlxdoctor.preflight(fixed)) is Readiness.READY


def test_all_changes_at_once_and_the_file_keeps_its_comments(
    plan: Plan, call: Call, tmp_path: Path
) -> None:
    path = plan(learning_rate=0.03, max_seq_length=24, num_layers=None)
    fixed = tmp_path / "fixed.yaml"
    assert call("preflight", path, "--write", fixed, "-o", tmp_path / "reports")[0] == 1
    text = fixed.read_text()
    assert text.startswith("# ours\n")
    changed = yaml.safe_load(text)
    assert changed["num_layers"] == -1
    assert changed["max_seq_length"] > 24
    assert float(changed["learning_rate"]) < 0.03
    code, printed, _ = call("preflight", fixed, "--stdout", "json")
    assert (code, json.loads(printed)["planned"]["readiness"]) == (0, "ready")


def test_unknown_where_the_data_are_not_here(plan: Plan, call: Call) -> None:
    planned = mlxdoctor.preflight(plan(data="someone/some-data")).planned
    assert planned.readiness is Readiness.UNKNOWN
    assert "training data" in planned.open_because
    code, printed, _ = call("preflight", plan(data="someone/some-data"), "--stdout", "text")
    assert code == 3
    assert "--data" in printed


def test_what_is_certain_needs_no_data(plan: Plan) -> None:
    path = plan(data="elsewhere", model="./models/llama-3.2-3b-instruct-mlx", learning_rate=2e-4)
    assert not_ready(mlxdoctor.preflight(path))[1].after == {"learning_rate": 2e-5}


def test_options_go_before_the_file(plan: Plan, call: Call) -> None:
    path = plan(learning_rate=0.03)
    assert call("preflight", path, "--stdout", "json")[0] == 1
    code, printed, _ = call("preflight", path, "--learning-rate", "3e-4", "--stdout", "json")
    assert (code, json.loads(printed)["planned"]["readiness"]) == (0, "ready")
    options = [f"--{key.replace('_', '-')}={value}" for key, value in SOUND.items()]
    code, printed, _ = call("preflight", *options, "--stdout", "text")
    assert (code, printed.split(":")[0]) == (0, "plan")


def test_ready(plan: Plan) -> None:
    # A file, or the arguments of mlx-lm.
    for given in (plan(), argparse.Namespace(**SOUND)):
        planned = mlxdoctor.preflight(given).planned
        assert planned.readiness is Readiness.READY
        assert planned.facts[0].startswith("200 rows in batches of 4: 400 iterations are 8 passes")


def test_a_few_rows_again_and_again_is_told_before(plan: Plan, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "few", train=rows_of()[:12], valid=rows_of()[:12])
    report = mlxdoctor.preflight(plan(data=str(data)))
    assert readiness(report) is Readiness.NOT_READY
    assert report.root.cause.id == "overfitting"
    assert "400 iterations are 133 passes" in report.planned.facts[0]


@pytest.mark.parametrize("name", ["html", "json", "markdown", "text"])
def test_every_format(plan: Plan, call: Call, name: str) -> None:
    code, printed, _ = call("preflight", plan(learning_rate=0.03), "--stdout", name)
    assert code == 1
    assert "learning" in printed


def test_nothing_is_written_beside_rows_or_weights(plan: Plan, call: Call, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(SOUND["data"], data)
    before = digest(data)
    path = plan(data=str(data))
    assert call("preflight", path, "-o", data / "reports")[0] == 2
    assert call("preflight", path, "--write", data / "fixed.yaml", "--stdout", "text")[0] == 2
    assert digest(data) == before


def test_what_is_no_plan() -> None:
    with pytest.raises(InputError, match="is no configuration"):
        mlxdoctor.preflight(3)


def test_memory_that_is_not_there_and_the_cheapest_way(plan: Plan) -> None:
    path = plan()
    fits = mlxdoctor.preflight(path, memory=1 << 30)
    assert readiness(fits) is Readiness.READY
    cause, fix = not_ready(mlxdoctor.preflight(path, memory=14_000_000))
    assert (cause, dict(fix.after)) == ("memory-pressure", {"grad_checkpoint": True})
    # Of another machine nothing is known.
    assert readiness(mlxdoctor.preflight(path, elsewhere=True)) is Readiness.READY


@pytest.mark.long
@pytest.mark.slow
def test_steps_find_a_rate_that_only_the_model_and_its_rows_can_tell(plan: Plan) -> None:
    path = plan(learning_rate=0.0013)
    # No more than is usual for a model of this size.
    assert readiness(mlxdoctor.preflight(path)) is Readiness.READY
    report = mlxdoctor.preflight(path, steps=True, seconds=90)
    cause, fix = not_ready(report)
    assert cause == "learning-rate-too-high"
    assert 1e-5 < fix.after["learning_rate"] < 0.0007
    assert any("to its last the run takes about" in one for one in report.planned.facts)


def test_steps_without_a_model_are_said_to_be_none(plan: Plan) -> None:
    report = mlxdoctor.preflight(plan(model="someone/some-model"), steps=True)
    assert report.planned.facts[0].startswith("No step was made")


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
