"""The action, the hooks and the snippets of the gate's page, run as their hosts would run them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

from mlxdoctor.gate.policy_file import read_policy
from tests.conftest import ROOT, RUNS

SCRIPTS = Path(sys.executable).parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"]}
FAILED, HEALTHY = "collapse-frequent-token", "healthy-ordinary"
NOT_FINITE = "rate-far-too-high-nan"

pytestmark = pytest.mark.skipif(
    not (SCRIPTS / "mlxdoctor").exists() or shutil.which("bash") is None,
    reason="needs bash, and mlxdoctor as an installed command",
)


@dataclass(frozen=True)
class Ran:
    """What a step left behind."""

    code: int
    log: str
    outputs: Mapping[str, str]
    summary: str


def run(*command: Any, **options: Any) -> tuple[int, str]:
    """The exit code of a command, and all that it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout + done.stderr


def run_step(name: str, folder: Path, inputs: Mapping[str, str]) -> Ran:
    """Run a step as the runner does: its inputs put into `env`, its script given to bash."""
    step = STEPS[name]
    defaults = {one: str(given.get("default", "")) for one, given in ACTION["inputs"].items()}
    known = {f"inputs.{one}": value for one, value in {**defaults, **inputs}.items()}
    known["github.action_path"] = str(ROOT)
    runner, output, summary = folder / "runner", folder / "output", folder / "summary.md"
    runner.mkdir(exist_ok=True)
    environment = {
        **{one: value for one, value in os.environ.items() if one not in ("PYTHONPATH", "CI")},
        **{one: expanded(value, known) for one, value in step["env"].items()},
        "RUNNER_TEMP": str(runner),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_WORKSPACE": str(folder),
    }
    output.write_text("")
    script = folder / "step.sh"
    script.write_text(step["run"])
    shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
    code, log = run(*shell, script, cwd=folder, env=environment)
    pairs = [line.split("=", 1) for line in output.read_text().splitlines()]
    written = summary.read_text() if summary.exists() else ""
    return Ran(code, log, dict(pairs), written)


def expanded(value: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda match: known[match[1]], value)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A user's repository with adapters in it, and mlxdoctor where the first step puts it."""
    for name in (FAILED, HEALTHY):
        shutil.copytree(RUNS / name, tmp_path / "adapters" / name)
    scripts = tmp_path / "runner" / "mlxdoctor" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "mlxdoctor").symlink_to(SCRIPTS / "mlxdoctor")
    return tmp_path


def valid(schema: str, file: Path) -> None:
    """What the schema that check-jsonschema carries says of a file."""
    code, said = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, file)
    assert code == 0, said


def test_the_action_is_valid() -> None:
    valid("vendor.github-actions", ROOT / "action.yml")


def test_no_value_is_part_of_a_script() -> None:
    for step in STEPS.values():
        assert "${{" not in step["run"]
    used = {name for step in STEPS.values() for name in step["env"].values()}
    assert used == {
        *(f"${{{{ inputs.{one} }}}}" for one in ACTION["inputs"]),
        "${{ github.action_path }}",
    }


@pytest.mark.slow
def test_a_failing_adapter_fails_the_step_and_is_annotated_and_summarised(checkout: Path) -> None:
    ran = run_step("gate", checkout, {"paths": "adapters/*/\n"})
    assert ran.code == 1, ran.log
    assert ran.outputs["exit-code"] == "1"
    file = f"file=adapters/{FAILED}/adapters.safetensors,"
    assert ran.log.count("::error ") == 1
    assert f"::error {file}" in ran.log
    assert "Root cause: the learning rate is too high." in ran.log
    assert "learning rate is too high" in ran.summary
    sarif = json.loads(Path(ran.outputs["sarif"]).read_text())
    uris = {
        one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for one in sarif["runs"][0]["results"]
    }
    assert f"adapters/{FAILED}/adapters.safetensors" in uris
    (suite,) = JUnitXml.fromfile(ran.outputs["junit"])
    assert len(list(suite)) == 2


@pytest.mark.slow
def test_a_sound_adapter_passes_and_the_policy_and_options_are_used(checkout: Path) -> None:
    assert run_step("gate", checkout, {"paths": f"adapters/{HEALTHY}"}).code == 0
    (checkout / "my policy.toml").write_text('fail-on = "never"\n')
    ran = run_step("gate", checkout, {"paths": "adapters/*/", "policy": "my policy.toml"})
    assert ran.code == 0, ran.log
    ran = run_step("gate", checkout, {"paths": "adapters/*/", "args": "--time-limit\n0.0001\n"})
    assert ran.code == 2, ran.log


def test_a_bad_option_says_so_and_leaves_no_file_to_upload(checkout: Path) -> None:
    ran = run_step("gate", checkout, {"paths": "adapters/*/", "policy": "absent.toml"})
    assert ran.code == 2
    assert "absent.toml" in ran.log
    assert ran.outputs == {"exit-code": "2"}


def test_a_summary_that_github_would_drop_is_cut(checkout: Path) -> None:
    command = checkout / "runner" / "mlxdoctor" / "bin" / "mlxdoctor"
    command.unlink()
    # --output FOLDER -- PATH
    command.write_text(
        '#!/usr/bin/env bash\nyes "a line" | head -c 3000000 > "${@: -3:1}/gate.md"\n'
    )
    command.chmod(0o755)
    ran = run_step("gate", checkout, {"paths": "adapters"})
    assert ran.code == 0, ran.log
    assert len(ran.summary) == 1_000_000
    assert ran.outputs == {"exit-code": "0"}


@pytest.mark.slow
def test_paths_are_never_commands_or_options(checkout: Path) -> None:
    values = ["$(touch pwned)", "`touch pwned`", "; touch pwned", '" ; touch pwned ; "']
    values += ["--policy", "-x"]
    lines = [f"  {value}  \n" for value in values]
    ran = run_step("gate", checkout, {"paths": "\n".join([*lines, f"adapters/{HEALTHY}"])})
    assert ran.code == 2, ran.log
    for value in values:
        assert f"{value}: there is no such file or folder" in ran.log
    assert "# Gate: 6 are unusable, 1 passed" in ran.summary
    assert not (checkout / "pwned").exists()


@pytest.mark.parametrize(
    ("version", "requirement"),
    [
        ("", str(ROOT)),
        ("0.1.0", "mlxdoctor==0.1.0"),
        ("1 $(touch pwned)", "mlxdoctor==1 $(touch pwned)"),
    ],
)
def test_it_installs_its_own_code_or_a_release(
    tmp_path: Path, version: str, requirement: str
) -> None:
    """The Python is one that writes down what it was told."""
    python = tmp_path / "python"
    python.write_text(
        "#!/usr/bin/env bash\n"
        f'printf "%s\\n" "$@" >> "{tmp_path}/told"\n'
        'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\n'
    )
    python.chmod(0o755)
    ran = run_step("install", tmp_path, {"python": str(python), "version": version})
    assert ran.code == 0, ran.log
    told = (tmp_path / "told").read_text().splitlines()
    assert told[:2] == ["-m", "venv"]
    assert told[3:6] == ["-m", "pip", "install"]
    assert told[-2:] == ["--", requirement]
    assert not (tmp_path / "pwned").exists()


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    code, said = run("git", *named, *arguments, cwd=folder)
    assert code == 0, said
    return said.strip()


@pytest.fixture
def hooked(tmp_path: Path) -> Path:
    """A user's repository that names the hooks, installed already as far as pre-commit knows."""
    hooks, users = tmp_path / "hooks", tmp_path / "users"
    for folder in (hooks, users):
        folder.mkdir()
        git(folder, "init", "-q")
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    git(hooks, "add", ".")
    git(hooks, "commit", "-q", "-m", "hooks")
    chosen = [{"id": one, "language": "system"} for one in ("mlxdoctor-lint", "mlxdoctor-gate")]
    source = {"repo": str(hooks), "rev": git(hooks, "rev-parse", "HEAD"), "hooks": chosen}
    (users / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [source]}))
    return users


def pre_commit(folder: Path, *arguments: str) -> tuple[int, str]:
    git(folder, "add", ".")
    environment = os.environ | {
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(folder.parent / "cache"),
    }
    # Hooks of the git that runs these tests would answer for this repository.
    environment = {one: value for one, value in environment.items() if not one.startswith("GIT_")}
    return run(sys.executable, "-m", "pre_commit", *arguments, cwd=folder, env=environment)


def test_the_hooks_are_valid() -> None:
    manifest = ROOT / ".pre-commit-hooks.yaml"
    code, said = run(sys.executable, "-m", "pre_commit", "validate-manifest", manifest)
    assert code == 0, said


@pytest.mark.slow
def test_the_lint_hook_stops_a_known_mistake_in_python_only(hooked: Path) -> None:
    loss = "def loss(losses, mask):\n    return mx.sum(losses) / mask.sum()\n"
    bad = f"import mlx.core as mx\n\n\n{loss}"
    (hooked / "notes.md").write_text(bad)
    code, said = pre_commit(hooked, "run", "mlxdoctor-lint")
    assert code == 0, said
    (hooked / "train.py").write_text(bad)
    code, said = pre_commit(hooked, "run", "mlxdoctor-lint")
    assert code == 1
    assert "train.py:5:12: warning [unguarded-mean]" in said


@pytest.mark.slow
def test_the_gate_hook_stops_a_broken_adapter_and_lets_a_sound_one_pass(hooked: Path) -> None:
    shutil.copytree(RUNS / HEALTHY, hooked / "sound")
    code, said = pre_commit(hooked, "run", "mlxdoctor-gate")
    assert code == 0, said
    assert "Passed" in said
    shutil.copytree(RUNS / NOT_FINITE, hooked / "broken")
    code, said = pre_commit(hooked, "run", "mlxdoctor-gate")
    assert code == 1, said
    # Of each run's files only the adapter itself is an item: no checkpoint is.
    assert "1 of 2 failed" in said


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
def test_the_gitlab_job_fails_and_leaves_the_file_that_gitlab_shows(checkout: Path) -> None:
    file = checkout / ".gitlab-ci.yml"
    file.write_text(snippet("adapters"))
    valid("vendor.gitlab-ci", file)
    job = yaml.safe_load(snippet("adapters"))["adapters"]
    install, *rest = job["script"]
    assert install == "pip install mlxdoctor"
    environment = os.environ | {"PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    script = ("bash", "-eo", "pipefail", "-c", "\n".join(rest))
    code, said = run(*script, cwd=checkout, env=environment)
    assert code == 1, said
    (suite,) = JUnitXml.fromfile(str(checkout / job["artifacts"]["reports"]["junit"]))
    failed = {case.name: case.is_failure for case in suite}
    assert failed == {f"adapters/{FAILED}": True, f"adapters/{HEALTHY}": False}


def test_the_policy_is_one(tmp_path: Path) -> None:
    (written,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    file = tmp_path / "mlxdoctor.toml"
    file.write_text(written)
    policy = read_policy(file)
    assert policy.rules.require == ("loss-trend",)
    assert policy.rules_for("adapters/experimental/one").fail_on == "never"
    assert [one.reason for one in policy.ignores] == ["short run with a warm-up, looked at by hand"]
