"""The gate's page: its snippets for CI are valid, and the GitLab one does what it says."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

from mlxdoctor.gate.policy_file import read_policy
from tests.conftest import ROOT, RUNS
from tests.test_ci_files import ACTION, SCRIPTS, run, valid

PAGE = ROOT / "docs" / "gate.md"
SNIPPETS = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def snippet(key: str) -> str:
    """The one that has `key` at its top."""
    (found,) = (one for one in SNIPPETS if re.search(rf"^{key}:", one, re.M))
    return found


def steps() -> list[dict[str, Any]]:
    return yaml.safe_load(snippet("jobs"))["jobs"]["gate"]["steps"]  # type: ignore[no-any-return]


def test_the_workflow_is_valid_and_uses_what_the_action_has(tmp_path: Path) -> None:
    file = tmp_path / "workflow.yml"
    file.write_text(snippet("jobs"))
    valid("vendor.github-workflows", file)
    (gate,) = (one for one in steps() if one.get("id") == "gate")
    assert gate["with"].keys() <= ACTION["inputs"].keys()
    required = {name for name, one in ACTION["inputs"].items() if one.get("required")}
    assert required <= gate["with"].keys()
    outputs = re.findall(r"steps\.gate\.outputs\.([\w-]+)", snippet("jobs"))
    assert outputs
    assert set(outputs) <= ACTION["outputs"].keys()


def test_the_pre_commit_configuration_is_valid_and_names_hooks_that_exist(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(snippet("repos"))
    code, said = run(sys.executable, "-m", "pre_commit", "validate-config", file)
    assert code == 0, said
    (repository,) = yaml.safe_load(snippet("repos"))["repos"]
    manifest = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {one["id"] for one in repository["hooks"]} == {one["id"] for one in manifest}


@pytest.mark.slow
@pytest.mark.skipif(
    not (SCRIPTS / "mlxdoctor").exists() or shutil.which("bash") is None,
    reason="needs bash, and mlxdoctor as an installed command",
)
def test_the_gitlab_job_fails_and_leaves_the_file_that_gitlab_shows(tmp_path: Path) -> None:
    file = tmp_path / ".gitlab-ci.yml"
    file.write_text(snippet("adapters"))
    valid("vendor.gitlab-ci", file)
    job = yaml.safe_load(snippet("adapters"))["adapters"]
    install, *rest = job["script"]
    assert install == "pip install mlxdoctor"
    for name in ("collapse-frequent-token", "healthy-ordinary"):
        shutil.copytree(RUNS / name, tmp_path / "adapters" / name)
    environment = os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    script = ("bash", "-eo", "pipefail", "-c", "\n".join(rest))
    code, said = run(*script, cwd=tmp_path, env=environment)
    assert code == 1, said
    report = JUnitXml.fromfile(str(tmp_path / job["artifacts"]["reports"]["junit"]))
    failed = {suite.name: suite.failures > 0 for suite in report}
    assert failed == {
        "adapters/collapse-frequent-token": True,
        "adapters/healthy-ordinary": False,
    }


def test_the_policy_is_one(tmp_path: Path) -> None:
    (written,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    file = tmp_path / "mlxdoctor.toml"
    file.write_text(written)
    policy = read_policy(file)
    assert policy.rules.require == ("loss-trend",)
    assert policy.rules_for("adapters/experimental/one").fail_on == "never"
    assert [one.reason for one in policy.ignores] == ["short run with a warm-up, looked at by hand"]
