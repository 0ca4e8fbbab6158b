from pathlib import Path

import pytest

from mlxdoctor.gate.policy import Policy, matches
from mlxdoctor.gate.policy_file import find_policy, read_policy
from mlxdoctor.safety.errors import InputError
from tests.gate.given import policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("requires = []", "requires is an unknown key; did you mean 'require'?"),
        ('require = ["loss-trends"]', "unknown check 'loss-trends'; did you mean 'loss-trend'?"),
        ('require = "loss-trend"', "require is 'loss-trend'; write a list of texts"),
        ('fail = ["loss-trend.divergd"]', "did you mean 'loss-trend.diverged'?"),
        ('fail-on = "warn"', "fail-on is 'warn'; write one of 'info', 'warning', 'error', 'never'"),
        ("baseline = 3", "baseline is 3; write a text"),
        ("budget = 0", "budget is 0; write a number of seconds"),
        ("budget = true", "budget is True; write a number of seconds"),
        ("thresholds = {}", "thresholds is an unknown key"),
        ("override = {}", "override is {}; write each of them below"),
        ("[[override]]\nfail-on = 'never'", "override 1: paths is missing"),
        ("[[override]]\npaths = ['a']", "override 1: changes nothing"),
        ("[[override]]\npaths = ['a']\nbaseline = 'x'", "override 1: baseline is an unknown key"),
        (
            "[[override]]\npaths = ['!a']\nfail = []",
            "override 1: paths is ['!a']; write a list of paths",
        ),
        ("[[ignore]]\ncode = 'score'", "ignore 1: reason is missing"),
        ("[[ignore]]\ncode = 'score'\nreason = ' '", "ignore 1: reason is ' '"),
        ("[[ignore]]\nreason = 'x'", "ignore 1: code is missing"),
        (
            "[[ignore]]\ncode='score'\nreason='x'\nuntil=1",
            "ignore 1: until is an unknown key",
        ),
        (
            "[[ignore]]\ncode='score'\nreason='x'\nexpires='2030-01-31'",
            "ignore 1: expires is '2030-01-31'; write a day without quotes",
        ),
        ("fail-on =", "is not valid TOML"),
        (" ", "states no rule; write a rule, or remove it"),
        ('fail-on = "error"\n[tool.mlxdoctor]\n', "has fail-on above [tool.mlxdoctor]"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        policy(tmp_path, text)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "mlxdoctor.toml"))
    assert "\n" not in said


def test_what_lies_elsewhere_is_looked_for_from_the_policy(tmp_path: Path) -> None:
    stated = policy(tmp_path, 'baseline = "known.json"\nbase = "../b"\ndata = "d"\nbudget = 30')
    assert stated.baseline == tmp_path / "known.json"
    assert (stated.base, stated.data) == (tmp_path / "../b", tmp_path / "d")
    assert stated.budget == 30.0


def test_a_section_of_pyproject_is_a_policy_and_the_rest_is_not(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "x"\n[tool.mlxdoctor]\nfail-on = "never"\n')
    assert read_policy(project).rules.fail_on == "never"


def test_the_nearest_policy_upwards_is_found(tmp_path: Path) -> None:
    below = tmp_path / "project" / "adapters"
    below.mkdir(parents=True)
    (tmp_path / "mlxdoctor.toml").touch()
    assert find_policy(below) == tmp_path / "mlxdoctor.toml"
    # A project without a section of ours does not end the search.
    project = tmp_path / "project" / "pyproject.toml"
    project.write_text("[project]\n")
    assert find_policy(below) == tmp_path / "mlxdoctor.toml"
    project.write_text("[tool.mlxdoctor]\n")
    assert find_policy(below) == project
    own = tmp_path / "project" / "mlxdoctor.toml"
    own.touch()
    assert find_policy(below) == own


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


def test_a_policy_extends_one_further_up_and_holds_below_its_own_folder(tmp_path: Path) -> None:
    policy(
        tmp_path,
        """
        require = ["loss-trend"]
        base = "models/b"
        [[ignore]]
        code = "score"
        reason = "as agreed"
        """,
    )
    team = tmp_path / "teams" / "fr"
    team.mkdir(parents=True)
    read = policy(
        team,
        """
        extend = "../../mlxdoctor.toml"
        fail-on = "warning"
        budget = 30
        [[override]]
        paths = ["old/**"]
        fail-on = "never"
        [[ignore]]
        code = "loss-trend"
        reason = "short runs"
        paths = ["try-*"]
        """,
    )
    assert (read.root, read.source) == (tmp_path, team / "mlxdoctor.toml")
    assert (read.base, read.budget) == (tmp_path / "models/b", 30.0)
    held = {key: read.rules_for(key) for key in ("a", "teams/fr/a", "teams/fr/old/a")}
    assert [one.fail_on for one in held.values()] == ["error", "warning", "never"]
    assert {one.require for one in held.values()} == {("loss-trend",)}
    assert [ignore.reason for ignore in read.ignores] == ["as agreed", "short runs"]
    # As in a .gitignore, what has no slash is meant in every folder, here below the policy's own.
    tried = read.ignores[1].paths
    assert matches(tried, "teams/fr/deep/try-2")
    assert not matches(tried, "try-2")


def test_a_policy_extends_none_beside_or_below_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="extend names no policy further up"):
        policy(tmp_path, 'extend = "mlxdoctor.toml"')
