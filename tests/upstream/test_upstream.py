"""The runs of published packages: what is listed, what was found, and the page made of it."""

import ast
import json
import zipfile
from pathlib import Path

import pytest

from fixtures.lab.upstream import fetch
from fixtures.lab.upstream.fetch import Package, packages
from fixtures.lab.upstream.listed import FOLDER, RESULTS, Bug, Loss, bugs, losses
from fixtures.lab.upstream.page import PAGE, is_shown, page, seen_by, verdict
from mlxdoctor.bugs.known import load_known_bugs, parse_version
from tests.conftest import ROOT

FOUND = json.loads(RESULTS.read_text())
#: What the project asks for.
WANTED = 15
#: Losses that the probe calls sound although they are not: said on the page, to be cured.
MISSED = {"mlx-forge, KTO", "SiLLM, SFT"}


def test_every_bug_is_in_the_list_of_known_bugs_and_of_the_same_package() -> None:
    for name, bug in bugs().items():
        assert load_known_bugs()[name].package == bug.package


def test_every_bug_of_a_trainer_in_that_list_is_shown_by_a_run() -> None:
    in_code = {one.id for one in load_known_bugs().values() if one.seen_by and not one.says}
    assert in_code <= set(bugs())


def test_every_version_that_is_run_is_known_by_its_hash() -> None:
    run = {f"{bug.package}=={version}" for bug in bugs().values() for version in bug.versions}
    run |= {f"{loss.package}=={loss.version}" for loss in losses().values()}
    assert run <= set(packages())
    assert all(bug.shown in bug.versions for bug in bugs().values())


def test_every_driver_is_there() -> None:
    for one in (*bugs().values(), *losses().values()):
        module, function = one.driver.split(":")
        tree = ast.parse((FOLDER / "drivers" / f"{module}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_versions_in_the_list_are_those_that_the_runs_found() -> None:
    for name in bugs():
        bug = load_known_bugs()[name]
        for version, result in FOUND["bugs"][name]["versions"].items():
            known = parse_version(version)
            assert known is not None
            if "present" in result:
                assert bug.affects(known) is result["present"], (name, version)


def test_enough_bugs_are_shown_and_found() -> None:
    shown = [bug for name, bug in bugs().items() if is_shown(bug, FOUND["bugs"][name])]
    assert len(shown) == len(bugs())
    assert sum(bool(seen_by(bug, FOUND["bugs"][bug.id])) for bug in shown) >= WANTED


def test_what_is_said_to_see_a_bug_saw_it() -> None:
    for name, bug in bugs().items():
        saw = [one.replace("`", "") for one in seen_by(bug, FOUND["bugs"][name])]
        assert set(load_known_bugs()[name].seen_by) <= set(saw), name


def test_the_verdicts_of_the_probe_are_right() -> None:
    wrong = {name for name, one in losses().items() if not verdict(one, FOUND["losses"][name])[1]}
    assert wrong == MISSED


def test_the_page_is_that_of_the_results() -> None:
    assert (ROOT / PAGE).read_text("utf-8") == page()


def _result(*codes: str, severity: str = "error") -> dict[str, object]:
    return {"probe": {"findings": [{"code": one, "severity": severity} for one in codes]}}


@pytest.mark.parametrize(
    ("wrong", "found", "right"),
    [
        ((), _result(), True),
        ((), _result("step-update.no-loss"), False),
        ((), _result("step-alignment.prompt-trained", severity="info"), True),
        (("step-alignment.misaligned",), _result("step-alignment.misaligned"), True),
        (("step-alignment.misaligned",), _result(), False),
        (("step-alignment.misaligned",), _result("step-alignment.misaligned", "step-x.y"), False),
        ((), {"error": "ImportError"}, False),
    ],
)
def test_a_verdict_is_right_when_it_is_what_is_wrong_and_no_more(
    wrong: tuple[str, ...], found: dict[str, object], right: bool
) -> None:
    assert verdict(Loss("a", "b", "1", "c:d", "e", wrong), found)[1] is right


def test_a_finding_counts_only_in_the_version_shown() -> None:
    bug = Bug("mlx-llm-identity", "mlx-llm", "mlx_llm:sft", ("1.0.1", "1.0.9"), "1.0.9")
    of_old = {"lint": [], "versions": {"1.0.1": _result("step-alignment.misaligned")}}
    of_new = {"lint": [], "versions": {"1.0.9": _result("step-alignment.misaligned")}}
    assert seen_by(bug, of_old) == []
    assert seen_by(bug, of_new) == ["probe `step-alignment.misaligned`"]


def test_a_package_that_is_not_what_was_published_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.py", "")
    monkeypatch.setattr(fetch, "STORE", tmp_path / "store")
    monkeypatch.setattr(fetch, "_downloaded", lambda *_: wheel)
    with pytest.raises(RuntimeError, match="has the hash"):
        Package("a", "1", "0" * 64).folder()
    assert not (tmp_path / "store").exists()
