import json
import shutil
from pathlib import Path

import pytest

from fixtures.lab.bypasses.catalogue import edits, make
from mlxdoctor.gate import gating as run
from mlxdoctor.gate.examine import Examined, Options, examine
from tests.conftest import HEALTHY, RUNS, Call, Copy, digest

UNTRAINED = RUNS / "b-never-trained"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three runs below `runs/`, which is the current one."""
    for one in (HEALTHY, UNTRAINED, RUNS / "healthy-noisy-batch1"):
        shutil.copytree(one, tmp_path / "runs" / one.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_glob_is_judged_and_nothing_is_written(project: Path, call: Call) -> None:
    before = digest(project)
    code, out, err = call("gate", "runs/*/")
    assert code == 1
    assert out.startswith("gate: 1 of 3 failed, 2 passed\n")
    assert "adapter-presence.zero-b" in out
    assert err == ""
    assert call("gate", "runs/healthy-*/")[0] == 0
    assert digest(project) == before


def test_a_configuration_without_weights_and_one_that_is_no_plain_utf8(
    project: Path, call: Call
) -> None:
    run, bare = project / "runs" / HEALTHY.name, project / "bare"
    shutil.copytree(run, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    code, out, _ = call("gate", "bare")
    assert (code, "its configuration lies there, and no weights" in out) == (3, True)
    config = run / "adapter_config.json"
    for encoding in ("utf-8-sig", "utf-16"):
        config.write_text((HEALTHY / "adapter_config.json").read_text(), encoding)
        code, out, _ = call("gate", f"runs/{HEALTHY.name}")
        assert (code, "it has to be plain" in out) == (1, True)


def test_a_folder_of_runs_is_refused_and_a_missing_one_does_not_stop_the_rest(
    project: Path, call: Call
) -> None:
    code, out, _ = call("gate", "runs")
    assert (code, "'runs/*/'" in out) == (2, True)
    code, out, _ = call("gate", "none", "runs/healthy-ordinary")
    assert (code, "\nPassed\n  runs/healthy-ordinary\n" in out) == (2, True)
    assert call("gate", "none", "runs/b-never-trained")[0] == 1


def test_the_policy_is_found_from_here_upwards(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (project / "pyproject.toml").write_text('[tool.mlxdoctor]\nfail-on = "never"\n')
    monkeypatch.chdir(project / "runs")
    assert call("gate", "*/")[0] == 0
    other = project / "other.toml"
    other.write_text('require = ["resume"]\n')
    code, out, _ = call("gate", "healthy-ordinary", "--policy", str(other))
    assert (code, "the required check resume is skipped" in out) == (3, True)
    other.write_text('fail-onn = "never"\n')
    code, _, err = call("gate", "healthy-ordinary", "--policy", str(other))
    assert (code, "did you mean 'fail-on'?" in err) == (2, True)


@pytest.mark.slow
def test_ignores_overrides_and_their_notices(project: Path, call: Call) -> None:
    rules = project / "mlxdoctor.toml"
    rules.write_text(
        '[[override]]\npaths = ["runs/b-*"]\nfail-on = "never"\n'
        '[[ignore]]\ncode = "weight-drift.exploded"\nreason = "x"\n'
        '[[ignore]]\ncode = "weight-drift.exploded"\nreason = "x"\nexpires = 2020-01-01\n'
    )
    code, out, _ = call("gate", "runs/*/")
    assert code == 0
    said = " ".join(out.split())
    assert "the ignore of weight-drift.exploded suppresses nothing: remove it" in said
    assert "expired on 2020-01-01" in said
    assert call("gate", "runs/*/", "--strict")[0] == 2
    rules.unlink()
    assert call("gate", "runs/healthy-*/", "--strict")[0] == 0


@pytest.mark.slow
def test_a_baseline_is_written_and_then_only_what_is_new_fails(project: Path, call: Call) -> None:
    common = ["gate", "runs/*/", "--baseline", "known.json"]
    code, _, err = call(*common)
    assert (code, "there is no such baseline; make it: --write-baseline" in err) == (2, True)
    # It may be named in the policy, beside which it lies.
    (project / "mlxdoctor.toml").write_text('baseline = "known.json"\n')
    assert call("gate", "runs/*/", "--write-baseline")[0] == 0
    known = json.loads((project / "known.json").read_text())["known"]
    assert {one["path"] for one in known} == {"runs/b-never-trained"}
    assert call(*common)[0] == 0
    shutil.copytree(UNTRAINED, project / "runs" / "new")
    assert call(*common)[0] == 1
    shutil.rmtree(project / "runs" / "new")
    shutil.rmtree(project / "runs" / "b-never-trained")
    shutil.copytree(HEALTHY, project / "runs" / "b-never-trained")
    code, out, _ = call(*common)
    assert (code, "the baseline knows" in out) == (0, True)
    assert call(*common, "--write-baseline")[0] == 0
    assert json.loads((project / "known.json").read_text())["known"] == []


def test_files_and_what_is_printed_go_together(project: Path, call: Call) -> None:
    formats = ["--format", "markdown", "--format", "json"]
    code, printed, _ = call("gate", "runs/*/", *formats, "--stdout", "json", "-o", "out")
    assert code == 1
    assert (project / "out" / "gate.json").read_text() == printed
    page = (project / "out" / "gate.md").read_text()
    assert page.startswith("# Gate: 1 of 3 failed")
    assert str(project) not in printed + page
    code, out, _ = call("gate", "runs/*/", "--format", "json")
    assert (code, "reports/gate.json" in out) == (1, True)


@pytest.mark.slow
def test_what_was_found_is_printed_even_if_it_cannot_be_written(project: Path, call: Call) -> None:
    (project / "taken").touch()
    code, out, err = call("gate", "runs/*/", "--format", "json", "-o", "taken")
    assert code == 2
    assert "1 of 3 failed" in out
    assert "taken: cannot be written" in err


@pytest.mark.slow
def test_init_writes_a_policy_that_the_run_passes(project: Path, call: Call) -> None:
    code, said, _ = call("gate", "--init", "runs/healthy-*/")
    assert code == 0
    assert said.startswith("mlxdoctor.toml: requires ")
    text = (project / "mlxdoctor.toml").read_text()
    assert call("gate", "runs/healthy-*/")[0] == 0
    code, _, err = call("gate", "--init", "runs/healthy-ordinary")
    assert (code, "is there already; remove it" in err) == (2, True)
    assert (project / "mlxdoctor.toml").read_text() == text
    assert "#   runs/healthy-ordinary\n" in text
    code, _, err = call("gate", "--init", "--policy", "new.toml", "runs/b-never-trained")
    assert (code, "is no healthy run" in err) == (2, True)
    assert not (project / "new.toml").exists()
    assert call("gate", "--init", "--policy", "pyproject.toml", "runs/h*/")[0] == 2


def test_the_time_limit_holds_for_each_item(project: Path, call: Call) -> None:
    code, out, _ = call("gate", "runs/healthy-*/", "--time-limit", "1e-6")
    assert (code, out.count("took longer than 1e-06 s")) == (2, 2)


def test_an_interruption_reports_what_is_done(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    def stops(item: str, options: Options) -> Examined:
        if "noisy" in item:
            raise KeyboardInterrupt
        return examine(item, options)

    monkeypatch.setattr(run, "examine", stops)
    code, out, err = call("gate", "runs/*/", "--format", "json")
    assert code == 130
    assert "1 of 3 failed, 2 not examined" in out
    assert "interrupted: 1 of 3 were examined" in err
    written = json.loads((project / "reports" / "gate.json").read_text())
    assert written["unfinished"] == ["runs/healthy-noisy-batch1", "runs/healthy-ordinary"]


#: Edits after which an adapter has lost what it learned, and its files look as they did.
LOST = ("a-rows-permuted", "b-in-other-order", "random-b", "ranks-permuted")


@pytest.mark.long
@pytest.mark.slow(60)
def test_an_adapter_that_lost_what_it_learned_does_not_pass(project: Path, call: Call) -> None:
    """Without its log and its checkpoints, too."""
    shutil.copytree(RUNS.parent / "data", project / "data")
    for name in (*LOST, "both-signs"):
        make(edits()[name], project / "edited" / name, start=HEALTHY)
    items = json.loads(call("gate", "--generate", "edited/*/", "--stdout", "json")[1])["items"]
    statuses = {Path(item["path"]).name: item["status"] for item in items}
    assert statuses == {**dict.fromkeys(LOST, "failed"), "both-signs": "passed"}
    # Nothing shows what it lost where its rows are not at hand: it is not passed either.
    shutil.rmtree(project / "data")
    code, out, _ = call("gate", "--generate", "edited/ranks-permuted")
    assert code == 3
    assert "no model shows that it is better than its base at its own rows" in " ".join(out.split())


@pytest.mark.slow
def test_generate_runs_the_models(copied: Copy, call: Call) -> None:
    run_folder = copied("healthy-ordinary")
    (run_folder / "generations.jsonl").unlink(missing_ok=True)
    shutil.copytree(RUNS.parent / "base", run_folder.parent / "base")
    command = ("gate", run_folder, "--stdout", "json")
    [static] = json.loads(call(*command)[1])["items"]
    [generated] = json.loads(call(*command, "--generate")[1])["items"]
    assert "token-collapse" in static["checks"]["skipped"]
    assert "token-collapse" not in generated["checks"]["skipped"]
