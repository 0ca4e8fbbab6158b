from pathlib import Path

import pytest

from mlxdoctor.gate.policy import Policy, matches
from tests.gate.given import policy


@pytest.mark.parametrize(
    ("pattern", "key", "is_match"),
    [
        ("adapters/old", "adapters/old", True),
        ("adapters/old", "adapters/old/a", True),
        ("adapters/old", "adapters/older", False),
        ("adapters/old/", "adapters/old", True),
        ("adapters/*", "adapters/a", True),
        ("adapters/*/final", "adapters/a/b/final", False),
        ("adapters/**/final", "adapters/a/b/final", True),
        ("adapters/*-test", "adapters/a-test", True),
        ("adapters/*-test", "adapters/a", False),
    ],
)
def test_patterns_are_those_of_a_gitignore(pattern: str, key: str, is_match: bool) -> None:
    assert matches([pattern], key) is is_match


def test_a_path_is_seen_from_the_folder_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    rules = Policy(tmp_path)
    assert rules.key("a") == "sub/a"
    assert rules.key("./a/") == "sub/a"
    assert rules.key("../b") == "b"
    assert rules.key("..names") == "sub/..names"
    assert rules.key("/elsewhere/c") == "/elsewhere/c"


def test_an_override_replaces_what_it_names_and_the_later_one_wins(tmp_path: Path) -> None:
    read = policy(
        tmp_path,
        """
        require = ["loss-trend"]
        fail = ["score"]
        [[override]]
        paths = ["old/**"]
        require = []
        [[override]]
        paths = ["old/b"]
        fail-on = "never"
        """,
    )
    assert read.rules_for("new/a") == read.rules
    old = read.rules_for("old/a")
    assert (old.require, old.fail_on, old.fail) == ((), "error", {"score"})
    both = read.rules_for("old/b")
    assert (both.require, both.fail_on) == ((), "never")
