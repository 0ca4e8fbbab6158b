import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.cli.diagnose import command
from mlxdoctor.cli.output import exit_code
from tests.conftest import FIXTURES, HEALTHY, ROOT, RUNS, Call, Copy, digest
from tests.formats import sample

FAILED, STATIC = RUNS / "collapse-frequent-token", "--no-generate"


@pytest.mark.slow
def test_a_failed_run_exits_with_1_and_leaves_a_report(tmp_path: Path, call: Call) -> None:
    before = digest(FAILED)
    formats = ["--format", "markdown", "--format", "json"]
    code, out, _ = call("diagnose", FAILED, STATIC, "-o", tmp_path, *formats)
    assert code == 1
    report = (tmp_path / FAILED.name / "report.md").read_text()
    data = json.loads((tmp_path / FAILED.name / "report.json").read_text())
    assert data["verdict"] == "unhealthy"
    assert out.startswith(f"{FAILED.name}: ")
    assert "](figures/loss.png)" in report
    assert (tmp_path / FAILED.name / "figures" / "loss.png").is_file()
    assert str(ROOT) not in report
    assert digest(FAILED) == before


def test_a_sound_run_whose_models_were_not_run_says_what_to_run(call: Call) -> None:
    data = FIXTURES / "data" / "geography"
    code, out, _ = call("diagnose", HEALTHY, STATIC, "--data", data, "--stdout", "text")
    assert code == 3
    lines = out.splitlines()
    assert "it learned and nothing speaks against it" in " ".join(lines[:3])
    at = next(at for at, line in enumerate(lines) if "Run the models to know more" in line)
    said = [one.replace(f"{ROOT}/", "") for one in lines[at:]]
    wanted = "  mlxdoctor diagnose fixtures/runs/healthy-ordinary --data=fixtures/data/geography"
    assert wanted in said
    assert len(lines) <= 14


def test_a_log_alone_is_diagnosed_and_what_is_printed_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    log = tmp_path / "my.log"
    shutil.copy(FAILED / "train.log", log)
    monkeypatch.chdir(tmp_path)
    data = json.loads(call("diagnose", log, "--stdout", "json")[1])
    assert list(tmp_path.iterdir()) == [log]
    assert data["name"] == "my"
    kinds = {item["kind"] for item in data["run"]["evidence"]}
    assert "training log" in kinds
    assert "adapter" not in kinds


@pytest.mark.slow
def test_an_unreadable_file_is_named_and_the_rest_is_reported(
    tmp_path: Path, copied: Copy, call: Call
) -> None:
    run = copied(FAILED.name)
    weights = (run / "adapters.safetensors").read_bytes()
    (run / "adapters.safetensors").write_bytes(weights[:100])
    code, _, err = call("diagnose", run, STATIC, "-o", tmp_path / "out")
    assert (code, "adapters.safetensors" in err) == (2, True)
    report = (tmp_path / "out" / run.name / "report.md").read_text()
    first = report[: report.index("## What was examined")]
    assert "adapters.safetensors: " in first


@pytest.mark.slow
def test_select_and_ignore_take_lists_and_repeat(call: Call) -> None:
    def run(*options: str) -> set[str]:
        outcomes = json.loads(call("diagnose", FAILED, STATIC, "--stdout", "json", *options)[1])
        return {outcome["check"] for outcome in outcomes["outcomes"]}

    three = {"token-collapse", "learning-rate", "weight-drift"}
    selected = run("--select", "token-collapse,learning-rate", "--select", "weight-drift")
    assert selected == three
    assert three & run("--ignore", "token-collapse, learning-rate") == {"weight-drift"}


@pytest.mark.slow
def test_the_command_on_the_first_screen_confirms_this_run(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(ROOT)
    printed = call("diagnose", FAILED, STATIC, "--stdout", "markdown")[1]
    script = printed.split("```bash\n", 1)[1].split("```", 1)[0]
    program, name, *arguments = shlex.split(script)
    assert (program, name) == ("mlxdoctor", "diagnose")
    given = command.make_context(name, arguments).params
    assert given["confirm"]
    # Without a model most symptoms that a rerun could show are not there to compare with.
    assert not given["no_generate"]
    assert [path.resolve() for path in given["paths"]] == [FAILED]


NOTE = [sample.outcome("x", "found", sample.finding("x.y", "info", "so"))]
WARNING = [sample.outcome("x", "found", sample.finding("x.y", "warning", "hm"))]
ERROR = [sample.outcome("x", "found", sample.finding("x.y", "error", "oh"))]
CRASHED = [sample.outcome("x", "crashed", reason="KeyError")]


@pytest.mark.parametrize(
    ("changes", "fail_on", "code"),
    [
        ({}, "error", 0),
        ({"outcomes": NOTE}, "warning", 0),
        ({"outcomes": NOTE}, "info", 1),
        ({"outcomes": WARNING}, "error", 0),
        ({"outcomes": WARNING}, "warning", 1),
        ({"outcomes": WARNING}, "never", 0),
        ({"outcomes": ERROR}, "error", 1),
        ({"outcomes": ERROR}, "never", 0),
        ({"outcomes": ERROR + CRASHED}, "error", 1),
        ({"outcomes": ERROR + CRASHED}, "never", 3),
        ({"outcomes": CRASHED}, "error", 3),
        ({"verdict": "inconclusive"}, "error", 3),
        ({"verdict": "inconclusive"}, "never", 3),
        ({"outcomes": ERROR, "unreadable": ["x: is empty"]}, "error", 2),
        ({"unreadable": ["x: is empty"]}, "never", 2),
    ],
)
def test_exit_codes(changes: dict[str, Any], fail_on: str, code: int) -> None:
    assert exit_code(sample.made(sample.healthy() | changes), fail_on) == code


@pytest.mark.long
@pytest.mark.slow
def test_the_files_alone_speak_first_and_the_models_have_the_last_word(call: Call) -> None:
    arguments = ["diagnose", RUNS / "b-never-trained", "--stdout", "json"]
    _, out, err = call(*arguments, "--budget", 600)
    first = err.splitlines()[0]
    assert first.startswith("mlxdoctor: from the files alone: ")
    assert first.endswith("; the models are being asked")
    data = json.loads(out)
    assert data["run"]["left_out"] == []
    checks = [one["check"] for one in data["outcomes"]]
    assert checks == sorted(checks)
    by_name = {one["check"]: one for one in data["outcomes"]}
    assert by_name["learned-targets"]["status"] == "found"
    # Nothing is said before the models where none are asked.
    assert call(*arguments, STATIC)[2] == ""


@pytest.mark.slow
def test_what_a_small_budget_leaves_out_is_said(call: Call) -> None:
    data = json.loads(call("diagnose", HEALTHY, "--stdout", "json", "--budget", 0.01)[1])
    by_name = {one["check"]: one for one in data["outcomes"]}
    assert by_name["learned-targets"]["status"] == "skipped"
    said = "the time budget of 0.01 s was spent before"
    assert by_name["learned-targets"]["reason"].startswith(said)
    # The answers that the run's owner recorded are still there.
    assert by_name["token-collapse"]["status"] == "passed"
    assert not [one for one in data["outcomes"] if one["status"] == "crashed"]
