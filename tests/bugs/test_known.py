"""The list of known bugs: what it may say, and what `explain` prints of it."""

import re
from dataclasses import replace

import pytest

from mlxdoctor.bugs.known import load_known_bugs, parse_version
from mlxdoctor.causes import load_causes
from mlxdoctor.check import discover
from mlxdoctor.lint.rule import rules
from tests.conftest import Call

BUGS = load_known_bugs()


def test_what_the_list_may_say() -> None:
    of_apple = re.compile(r"https://github\.com/ml-explore/[a-z-]+/(issues|pull|commit|blob)/\S+")
    of_others = re.compile(r"https://github\.com/[\w-]+/[\w-]+")
    codes = {code for check in discover() for code in check.symptoms}
    seeing = {"probe": codes, "lint": {rule.code for rule in rules()}}
    # Each of these traces is looked for in tests/checks/test_known_bugs.py.
    traced = {"leftover-accumulation", "dora-odd-bits"}
    for bug in BUGS.values():
        since, fixed, verified = bug.since, bug.fixed, bug.verified
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", bug.package), bug.id
        # A bug without a fix was looked for in a version that has it.
        assert (fixed is None) is (verified is not None), bug.id
        assert since is None or fixed is None or since < fixed, bug.id
        assert since is None or verified is None or since.release <= verified.release, bug.id
        assert bool(bug.says) is (bug.id in traced or bug.error is not None), bug.id
        address = of_apple if bug.package in ("mlx", "mlx-lm") else of_others
        assert bug.references
        assert all(address.fullmatch(reference) for reference in bug.references), bug.id
        for tool, code in map(str.split, bug.seen_by):
            assert code in seeing[tool], bug.id


def test_names_are_not_those_of_anything_else_that_can_be_explained() -> None:
    checks = {name for check in discover() for name in (check.name, *check.symptoms)}
    others = checks | set(load_causes().causes) | {rule.code for rule in rules()}
    assert not BUGS.keys() & others
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in BUGS)


@pytest.mark.parametrize(
    ("version", "since", "fixed", "affected"),
    [
        ("0.18.2", "0.19.0", "0.21.5", False),
        ("0.19", "0.19.0", "0.21.5", True),
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
    version: str, since: str | None, fixed: str | None, affected: bool
) -> None:
    first, last = (parse_version(text) if text is not None else None for text in (since, fixed))
    bug = replace(BUGS["padding-target"], since=first, fixed=last)
    parsed = parse_version(version)
    assert parsed is not None
    assert bug.affects(parsed) is affected


@pytest.mark.parametrize("text", ["", "main", "0.x", "0.31.3 beta", "1" * 65])
def test_what_is_no_version_is_none(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "mlx-llm-identity",
            ["mlx-llm, since 1.0.8, not fixed yet (seen in 1.0.9)", "step-alignment.misaligned"],
        ),
        ("fuse-dequantize-name", ["mlx-lm, since 0.28.4, fixed in 0.29.0", "Reported in"]),
        ("known-bugs.fuse-dequantize-name", ["https://github.com/ml-explore/mlx-lm/issues/659"]),
        ("padding-target", ["not fixed yet (seen in 0.32.2)"]),
    ],
)
def test_explain_tells_of_a_bug(name: str, words: list[str], call: Call) -> None:
    code, shown, _ = call("explain", name)
    assert code == 0
    assert [word for word in words if word not in shown] == []


def test_bugs_that_are_said_not_to_be_fixed_are_still_in_the_source_installed() -> None:
    """A release that fixes one of these makes this fail: then `fixed` must be written down."""
    from importlib.metadata import distribution, version

    installed = parse_version(version("mlx-lm"))
    verified = [bug.verified for bug in BUGS.values() if bug.package == "mlx-lm" and bug.verified]
    if installed is None or any(installed.release > known.release for known in verified):
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
