"""What the README says is what the tool does."""

import re
import tomllib

import pytest

from mlxdoctor.causes import load_causes
from mlxdoctor.cli import COMMANDS
from reports.docs import pages
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_generated_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for path, content in pages().items():
        assert path.read_bytes() == content, f"{path}: run `python -m reports.build`"


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"mlxdoctor {command}" in README


def test_no_text_names_a_command_that_does_not_exist() -> None:
    texts = [path for folder in ("mlxdoctor", "checks") for path in (ROOT / folder).rglob("*.py")]
    texts += [ROOT / "mlxdoctor" / "causes.toml", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    for path in texts:
        named = set(re.findall(r"`mlxdoctor ([a-z]+)|Run: mlxdoctor ([a-z]+)", path.read_text()))
        assert {one or other for one, other in named} <= set(COMMANDS), path


def test_the_remedies_of_all_causes_are_sentences() -> None:
    for cause in load_causes().causes.values():
        assert cause.remedy.endswith("."), cause.id
        assert not cause.summary.endswith("."), cause.id


def test_the_wheel_has_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"]) - {"mlxdoctor.checks"}
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "mlxdoctor").rglob("__init__.py")}
    assert listed == {".".join(folder.parts) for folder in folders}


def test_no_report_says_to_start_again_and_to_keep_a_save() -> None:
    for path in sorted((ROOT / "reports").glob("*/report.md")):
        advice = path.read_text().partition("**What to change:**")[2].partition("## ")[0]
        if "again from the base" in advice:
            kept = re.findall(r"(?i)earlier checkpoint|saved nearest|better one", path.read_text())
            assert kept == [], path
