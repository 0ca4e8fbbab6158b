from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.cli import main
from mlxdoctor.cli.diagnose import command, exit_code
from tests.formats import sample

ROOT = Path(__file__).parents[2]
FAILED = ROOT / "fixtures" / "runs" / "collapse-frequent-token"
HEALTHY = ROOT / "fixtures" / "runs" / "healthy-ordinary"
STATIC = "--no-generate"


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def digest(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_a_failed_run_exits_with_1_and_leaves_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest(FAILED)
    arguments = ["diagnose", str(FAILED), STATIC, "-o", str(tmp_path)]
    assert main([*arguments, "--format", "markdown", "--format", "json"]) == 1
    report = (tmp_path / FAILED.name / "report.md").read_text()
    data = json.loads((tmp_path / FAILED.name / "report.json").read_text())
    assert data["verdict"] == "unhealthy"
    assert capsys.readouterr().out.startswith(f"{FAILED.name}: ")
    assert "](figures/loss.png)" in report
    assert (tmp_path / FAILED.name / "figures" / "loss.png").is_file()
    assert str(ROOT) not in report
    assert digest(FAILED) == before


def test_a_sound_run_whose_models_were_not_run_says_what_to_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = str(HEALTHY.parent.parent / "data" / "geography")
    assert main(["diagnose", str(HEALTHY), STATIC, "--data", data, "--stdout", "text"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert "it learned and nothing speaks against it" in " ".join(lines[:3])
    at = next(at for at, line in enumerate(lines) if "Run the models to know more" in line)
    said = [one.replace(f"{ROOT}/", "") for one in lines[at:]]
    wanted = "  mlxdoctor diagnose fixtures/runs/healthy-ordinary --data=fixtures/data/geography"
    assert wanted in said
    assert len(lines) <= 14


def test_a_log_alone_is_diagnosed_and_what_is_printed_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "my.log"
    shutil.copy(FAILED / "train.log", log)
    monkeypatch.chdir(tmp_path)
    main(["diagnose", str(log), "--stdout", "json"])
    assert list(tmp_path.iterdir()) == [log]
    data = printed(capsys)
    assert data["name"] == "my"
    kinds = {item["kind"] for item in data["run"]["evidence"]}
    assert "training log" in kinds
    assert "adapter" not in kinds


def test_a_report_is_never_written_into_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(FAILED, run)
    before = digest(run)
    monkeypatch.chdir(run)
    assert main(["diagnose", "."]) == 2
    error = capsys.readouterr().err
    assert "lies inside the inspected folder" in error
    assert "--stdout" in error
    assert digest(run) == before


@pytest.mark.slow
def test_an_unreadable_file_is_named_and_the_rest_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(FAILED, run)
    weights = (run / "adapters.safetensors").read_bytes()
    (run / "adapters.safetensors").write_bytes(weights[:100])
    assert main(["diagnose", str(run), STATIC, "-o", str(tmp_path / "out")]) == 2
    assert "adapters.safetensors" in capsys.readouterr().err
    report = (tmp_path / "out" / "run" / "report.md").read_text()
    first = report[: report.index("## What was examined")]
    assert "adapters.safetensors: " in first


@pytest.mark.slow
def test_select_and_ignore_take_lists_and_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["diagnose", str(FAILED), STATIC, "--stdout", "json"]
    main([*common, "--select", "token-collapse,learning-rate", "--select", "weight-drift"])
    checks = {one["check"] for one in printed(capsys)["outcomes"]}
    assert checks == {"token-collapse", "learning-rate", "weight-drift"}
    main([*common, "--ignore", "token-collapse, learning-rate"])
    assert (
        not checks
        & {"token-collapse", "learning-rate"}
        & {one["check"] for one in printed(capsys)["outcomes"]}
    )


@pytest.mark.slow
def test_the_command_on_the_first_screen_confirms_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    main(["diagnose", str(FAILED), STATIC, "--stdout", "markdown"])
    script = capsys.readouterr().out.split("```bash\n", 1)[1].split("```", 1)[0]
    program, name, *arguments = shlex.split(script)
    assert (program, name) == ("mlxdoctor", "diagnose")
    given = command.make_context(name, arguments).params
    assert given["confirm"]
    # Without a model most symptoms that a rerun could show are not there to compare with.
    assert not given["no_generate"]
    assert [path.resolve() for path in given["paths"]] == [FAILED]


WARNING = [sample.outcome("x", "found", sample.finding("x.y", "warning", "hm"))]
ERROR = [sample.outcome("x", "found", sample.finding("x.y", "error", "oh"))]
CRASHED = [sample.outcome("x", "crashed", reason="KeyError")]


@pytest.mark.parametrize(
    ("changes", "fail_on", "code"),
    [
        ({}, "error", 0),
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


@pytest.mark.slow
def test_the_files_alone_speak_first_and_the_models_have_the_last_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ROOT / "fixtures" / "runs" / "b-never-trained"
    arguments = ["diagnose", str(run), "--stdout", "json"]
    main([*arguments, "--budget", "600"])
    said = capsys.readouterr()
    first = said.err.splitlines()[0]
    assert first.startswith("mlxdoctor: from the files alone: ")
    assert first.endswith("; the models are being asked")
    data = json.loads(said.out)
    assert data["run"]["left_out"] == []
    checks = [one["check"] for one in data["outcomes"]]
    assert checks == sorted(checks)
    by_name = {one["check"]: one for one in data["outcomes"]}
    assert by_name["learned-targets"]["status"] == "found"
    # Nothing is said before the models where none are asked.
    main([*arguments, STATIC])
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_what_a_small_budget_leaves_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", str(HEALTHY), "--stdout", "json", "--budget", "0.01"])
    data = printed(capsys)
    by_name = {one["check"]: one for one in data["outcomes"]}
    assert by_name["learned-targets"]["status"] == "skipped"
    said = "the time budget of 0.01 s was spent before"
    assert by_name["learned-targets"]["reason"].startswith(said)
    # The answers that the run's owner recorded are still there.
    assert by_name["token-collapse"]["status"] == "passed"
    assert not [one for one in data["outcomes"] if one["status"] == "crashed"]
    assert main(["diagnose", str(HEALTHY), "--budget", "0"]) == 2
