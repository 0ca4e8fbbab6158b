from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxdoctor.cli import main
from mlxdoctor.gate import gating as run
from mlxdoctor.gate.examine import Examined, Task, examine
from mlxdoctor.gate.workers import here
from tests.conftest import RUNS, digest

HEALTHY = RUNS / "healthy-ordinary"
UNTRAINED = RUNS / "b-never-trained"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three runs below `runs/`, which is the current one."""
    for one in (HEALTHY, UNTRAINED, RUNS / "healthy-noisy-batch1"):
        shutil.copytree(one, tmp_path / "runs" / one.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Capture = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_a_glob_is_judged_and_nothing_is_written(project: Path, capsys: Capture) -> None:
    before = digest(project)
    assert main(["gate", "runs/*/"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("gate: 1 of 3 failed, 2 passed\n")
    assert "adapter-presence.zero-b" in printed.out
    assert printed.err == ""
    assert main(["gate", "runs/healthy-*/"]) == 0
    assert digest(project) == before


def test_a_folder_of_runs_is_refused_and_a_missing_one_does_not_stop_the_rest(
    project: Path, capsys: Capture
) -> None:
    assert main(["gate", "runs"]) == 2
    assert "'runs/*/'" in capsys.readouterr().out
    assert main(["gate", "none", "runs/healthy-ordinary"]) == 2
    assert "\nPassed\n  runs/healthy-ordinary\n" in capsys.readouterr().out
    assert main(["gate", "none", "runs/b-never-trained"]) == 1


def test_the_policy_is_found_from_here_upwards(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (project / "pyproject.toml").write_text('[tool.mlxdoctor]\nfail-on = "never"\n')
    monkeypatch.chdir(project / "runs")
    assert main(["gate", "*/"]) == 0
    other = project / "other.toml"
    other.write_text('require = ["resume"]\n')
    assert main(["gate", "healthy-ordinary", "--policy", str(other)]) == 3
    assert "the required check resume is skipped" in capsys.readouterr().out
    other.write_text('fail-onn = "never"\n')
    assert main(["gate", "healthy-ordinary", "--policy", str(other)]) == 2
    assert "did you mean 'fail-on'?" in capsys.readouterr().err


@pytest.mark.slow
def test_ignores_overrides_and_their_notices(project: Path, capsys: Capture) -> None:
    rules = project / "mlxdoctor.toml"
    rules.write_text(
        '[[override]]\npaths = ["runs/b-*"]\nfail-on = "never"\n'
        '[[ignore]]\ncode = "weight-drift.large"\nreason = "x"\n'
        '[[ignore]]\ncode = "weight-drift.large"\nreason = "x"\nexpires = 2020-01-01\n'
    )
    assert main(["gate", "runs/*/"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the ignore of weight-drift.large suppresses nothing: remove it" in said
    assert "expired on 2020-01-01" in said
    assert main(["gate", "runs/*/", "--strict"]) == 2
    rules.unlink()
    assert main(["gate", "runs/healthy-*/", "--strict"]) == 0


@pytest.mark.slow
def test_a_baseline_is_written_and_then_only_what_is_new_fails(
    project: Path, capsys: Capture
) -> None:
    common = ["gate", "runs/*/", "--baseline", "known.json"]
    assert main(common) == 2
    assert "there is no such baseline; make it: --write-baseline" in capsys.readouterr().err
    assert main(["gate", "runs/*/", "--write-baseline"]) == 2
    assert "--write-baseline has no file to write" in capsys.readouterr().err
    # It may be named in the policy, beside which it lies.
    (project / "mlxdoctor.toml").write_text('baseline = "known.json"\n')
    assert main(["gate", "runs/*/", "--write-baseline"]) == 0
    known = json.loads((project / "known.json").read_text())["known"]
    assert {one["path"] for one in known} == {"runs/b-never-trained"}
    assert main(common) == 0
    shutil.copytree(UNTRAINED, project / "runs" / "new")
    assert main(common) == 1
    shutil.rmtree(project / "runs" / "new")
    shutil.rmtree(project / "runs" / "b-never-trained")
    shutil.copytree(HEALTHY, project / "runs" / "b-never-trained")
    capsys.readouterr()
    assert main(common) == 0
    assert "the baseline knows" in capsys.readouterr().out
    assert main([*common, "--write-baseline"]) == 0
    assert json.loads((project / "known.json").read_text())["known"] == []


def test_files_the_summary_and_what_is_printed_go_together(project: Path, capsys: Capture) -> None:
    (project / "summary.md").write_text("before\n")
    formats = ["--format", "markdown", "--format", "json", "--summary", "summary.md"]
    assert main(["gate", "runs/*/", *formats, "--stdout", "json", "-o", "out"]) == 1
    printed = capsys.readouterr().out
    assert (project / "out" / "gate.json").read_text() == printed
    page = (project / "out" / "gate.md").read_text()
    assert page.startswith("# Gate: 1 of 3 failed")
    assert (project / "summary.md").read_text() == f"before\n{page}"
    assert str(project) not in printed + page
    assert main(["gate", "runs/*/", "--format", "json"]) == 1
    assert "reports/gate.json" in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_found_is_printed_even_if_it_cannot_be_written(
    project: Path, capsys: Capture
) -> None:
    (project / "taken").touch()
    assert main(["gate", "runs/*/", "--format", "json", "-o", "taken"]) == 2
    printed = capsys.readouterr()
    assert "1 of 3 failed" in printed.out
    assert "taken: cannot be written" in printed.err
    assert main(["gate", "runs/*/", "--summary", "none/summary.md"]) == 2
    assert "name another file with --summary" in capsys.readouterr().err


def test_nothing_is_written_into_what_is_examined(project: Path, capsys: Capture) -> None:
    run_folder = "runs/healthy-ordinary"
    before = digest(project)
    assert main(["gate", run_folder, "--format", "json", "-o", f"{run_folder}/out"]) == 2
    assert "lies inside the inspected folder" in capsys.readouterr().err
    baseline = ["--baseline", f"{run_folder}/known.json", "--write-baseline"]
    assert main(["gate", run_folder, *baseline]) == 2
    assert main(["gate", run_folder, "--init", "--policy", f"{run_folder}/policy.toml"]) == 2
    assert digest(project) == before


@pytest.mark.slow
def test_init_writes_a_policy_that_the_run_passes(project: Path, capsys: Capture) -> None:
    assert main(["gate", "--init", "runs/healthy-*/"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("mlxdoctor.toml: requires ")
    text = (project / "mlxdoctor.toml").read_text()
    assert main(["gate", "runs/healthy-*/"]) == 0
    assert main(["gate", "--init", "runs/healthy-ordinary"]) == 2
    assert "is there already; replace it with --force" in capsys.readouterr().err
    assert (project / "mlxdoctor.toml").read_text() == text
    assert main(["gate", "--init", "--force", "runs/healthy-ordinary"]) == 0
    assert "#   runs/healthy-ordinary\n" in (project / "mlxdoctor.toml").read_text()
    assert main(["gate", "--init", "--force", "runs/b-never-trained"]) == 2
    assert "is no healthy run" in capsys.readouterr().err
    assert "#   runs/healthy-ordinary\n" in (project / "mlxdoctor.toml").read_text()
    assert main(["gate", "--init", "--force", "--policy", "pyproject.toml", "runs/h*/"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [["--force"], ["--jobs", "2", "--cluster", "x"], ["--jobs", "0"], ["--time-limit", "0"]],
)
def test_options_that_do_not_go_together_are_refused(
    project: Path, arguments: list[str], capsys: Capture
) -> None:
    assert main(["gate", "runs/*/", *arguments]) == 2
    assert capsys.readouterr().out == ""


def test_the_time_limit_holds_for_each_item(project: Path, capsys: Capture) -> None:
    assert main(["gate", "runs/healthy-*/", "--time-limit", "1e-6"]) == 2
    assert capsys.readouterr().out.count("took longer than 1e-06 s") == 2


def test_an_interruption_reports_what_is_done(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def stops(task: Task) -> Examined:
        if "noisy" in task.path:
            raise KeyboardInterrupt
        return examine(task)

    monkeypatch.setattr(run, "here", lambda: here(stops))
    assert main(["gate", "runs/*/", "--format", "json"]) == 130
    printed = capsys.readouterr()
    assert "1 of 3 failed, 2 not examined" in printed.out
    assert "interrupted: 1 of 3 were examined" in printed.err
    written = json.loads((project / "reports" / "gate.json").read_text())
    assert written["unfinished"] == ["runs/healthy-noisy-batch1", "runs/healthy-ordinary"]


@pytest.mark.slow
def test_generate_runs_the_models(copied: Callable[[str], Path], capsys: Capture) -> None:
    run_folder = copied("rate-too-low")
    (run_folder / "generations.jsonl").unlink()
    shutil.copytree(RUNS.parent / "base", run_folder.parent / "base")
    main(["gate", str(run_folder), "--stdout", "json"])
    [static] = json.loads(capsys.readouterr().out)["items"]
    main(["gate", str(run_folder), "--stdout", "json", "--generate"])
    [generated] = json.loads(capsys.readouterr().out)["items"]
    assert "token-collapse" in static["checks"]["skipped"]
    assert "token-collapse" not in generated["checks"]["skipped"]
