"""The list of known bugs: what it may say, and what `explain` prints of it."""

from __future__ import annotations

import re

import pytest

from mlxdoctor.bugs.known import Affected, load_known_bugs, parse_version
from mlxdoctor.causes import load_causes
from mlxdoctor.check import discover
from mlxdoctor.cli import EXIT_UNUSABLE, main
from mlxdoctor.lint.rule import rules


def test_the_versions_of_every_bug_are_those_of_releases() -> None:
    for bug in load_known_bugs().values():
        since, fixed, verified = bug.affected.since, bug.affected.fixed, bug.verified
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", bug.affected.package), bug.id
        assert (fixed is None) is (verified is not None), bug.id
        assert since is None or fixed is None or since < fixed, bug.id
        assert not any(one is not None and one.is_prerelease for one in (since, fixed, verified))
    affected = load_known_bugs()["fuse-dequantize-name"].affected
    assert str(affected) == "mlx-lm, since 0.28.4, fixed in 0.29.0"


@pytest.mark.parametrize(
    ("version", "since", "fixed", "holds"),
    [
        ("0.18.2", "0.19.0", "0.21.5", False),
        ("0.19", "0.19.0", "0.21.5", True),
        ("0.21.4.post1", "0.19.0", "0.21.5", True),
        ("v0.21.4+cpu", "0.19.0", "0.21.5", True),
        ("0.21.5", "0.19.0", "0.21.5", False),
        ("0.21.10", "0.19.0", "0.21.5", False),
        # What comes before the release that fixed it is counted as having the bug.
        ("0.21.5.dev1", "0.19.0", "0.21.5", True),
        ("0.19.0rc1", "0.19.0", "0.21.5", False),
        ("0.32.2", "0.28.3", None, True),
        ("0.28.2", None, "0.28.3", True),
    ],
)
def test_which_versions_have_a_bug(
    version: str, since: str | None, fixed: str | None, holds: bool
) -> None:
    bounds = [parse_version(text) if text is not None else None for text in (since, fixed)]
    parsed = parse_version(version)
    assert parsed is not None
    assert Affected("mlx-lm", *bounds).holds(parsed) is holds


@pytest.mark.parametrize("text", ["", "main", "0.x", "d53e70f7", "0.31.3 beta", "1" * 65])
def test_what_is_no_version_is_none(text: str) -> None:
    assert parse_version(text) is None


def test_what_leaves_a_trace_or_a_message_has_a_sentence_and_nothing_else_has() -> None:
    # Each of these traces is looked for in tests/checks/test_known_bugs.py.
    traced = {"padding-target", "leftover-accumulation", "dora-odd-bits"}
    for bug in load_known_bugs().values():
        assert bool(bug.says) is (bug.id in traced or bug.error is not None), bug.id


def test_every_bug_says_where_it_is_reported() -> None:
    reported = re.compile(r"https://github\.com/ml-explore/[a-z-]+/(issues|pull|commit|blob)/\S+")
    package = re.compile(r"https://github\.com/[\w-]+/[\w-]+")
    for bug in load_known_bugs().values():
        address = reported if bug.affected.package in ("mlx", "mlx-lm") else package
        assert bug.references
        for one in bug.references:
            assert address.fullmatch(one), bug.id


def test_what_is_said_to_see_a_bug_is_there() -> None:
    codes = {code for check in discover() for code in check.codes}
    seeing = {"probe": codes, "lint": {rule.code for rule in rules()}}
    for bug in load_known_bugs().values():
        for one in bug.seen_by:
            tool, code = one.split()
            assert code in seeing[tool], bug.id


def test_names_are_not_those_of_anything_else_that_can_be_explained() -> None:
    bugs = set(load_known_bugs())
    checks = {name for check in discover() for name in (check.name, *check.codes)}
    others = checks | set(load_causes().causes) | {rule.code for rule in rules()}
    assert not bugs & others
    assert all(re.fullmatch(r"[a-z0-9-]+", one) for one in bugs)


def test_a_bug_without_a_fix_was_looked_for_in_a_version_that_has_it() -> None:
    for bug in load_known_bugs().values():
        if bug.verified is not None and bug.affected.since is not None:
            assert bug.verified.release >= bug.affected.since.release, bug.id


def test_explain_tells_of_a_bug_of_another_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "mlx-llm-identity"]) == 0
    said = capsys.readouterr().out
    assert "mlx-llm, since 1.0.8, not fixed yet (seen in 1.0.9)" in said
    assert "mlxdoctor probe step-alignment.identity" in said
    assert "Reported in" not in said


@pytest.mark.parametrize("name", ["fuse-dequantize-name", "known-bugs.fuse-dequantize-name"])
def test_explain_tells_of_a_bug(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    said = capsys.readouterr().out
    assert "mlx-lm, since 0.28.4, fixed in 0.29.0" in said
    assert "https://github.com/ml-explore/mlx-lm/issues/659" in said


def test_explain_says_where_a_bug_without_a_fix_was_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "padding-target"]) == 0
    assert "not fixed yet (seen in 0.32.2)" in capsys.readouterr().out


def test_a_bug_that_is_written_wrongly_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "load-adapter-unchecked"]) == EXIT_UNUSABLE
    assert "did you mean load-adapters-unchecked" in capsys.readouterr().err


def test_bugs_that_are_said_not_to_be_fixed_are_still_in_the_source_installed() -> None:
    """A release that fixes one of these makes this fail: then `fixed` must be written down."""
    from importlib.metadata import distribution, version

    installed = parse_version(version("mlx-lm"))
    of_mlx_lm = [one for one in load_known_bugs().values() if one.affected.package == "mlx-lm"]
    verified = [bug.verified for bug in of_mlx_lm if bug.verified is not None]
    if installed is None or any(installed.release > one.release for one in verified):
        pytest.skip("a later mlx-lm is installed than the list was last compared with")
    package = distribution("mlx-lm")

    def source(name: str) -> str:
        return str(package.locate_file(f"mlx_lm/{name}").read_text())  # type: ignore[attr-defined]

    trainer, lora = source("tuner/trainer.py"), source("lora.py")
    assert "steps <= lengths[:, 1:]" in trainer
    assert "it % grad_accum_steps == 0" in trainer
    assert "sum() / ntoks" in trainer
    assert "return len(self._data[idx])" in source("tuner/datasets.py")
    assert "model.load_weights(args.resume_adapter_file, strict=False)" in lora
    assert "32 // linear.bits" in source("tuner/dora.py")
