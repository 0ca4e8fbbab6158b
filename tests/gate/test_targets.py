from pathlib import Path

import pytest

from mlxdoctor.evidence.adapter import FILE_NAMES
from mlxdoctor.evidence.config import CONFIG_NAME
from mlxdoctor.gate.targets import targets


@pytest.fixture
def adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three adapters, one of them a level further down, a note and an empty folder."""
    for name in ("adapters/b", "adapters/a", "adapters/more/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "adapters.safetensors").touch()
    (tmp_path / "adapters/README.md").touch()
    (tmp_path / "adapters/empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # Arguments keep their order, and globs go by name.
        ("adapters/more/c adapters/?", "adapters/more/c adapters/a adapters/b"),
        # A slash at the end names folders, the empty one too.
        ("adapters/*/", "adapters/a adapters/b adapters/empty adapters/more"),
        (
            "adapters/**/adapters.safetensors",
            "adapters/a/adapters.safetensors adapters/b/adapters.safetensors "
            "adapters/more/c/adapters.safetensors",
        ),
        # What is named twice is examined once.
        ("adapters/a/ adapters/? ./adapters/a", "adapters/a adapters/b"),
        # A link does not take the name of what it leads to.
        ("a-link adapters/?", "adapters/a adapters/b"),
        ("adapters/? a-link", "adapters/a adapters/b"),
        ("a-link", "a-link"),
        # A name with brackets is a name first.
        ("run[1]", "run[1]"),
        # What holds one run in a folder below is that run.
        ("adapters/more", "adapters/more"),
    ],
)
def test_what_arguments_name(adapters: Path, arguments: str, expected: str) -> None:
    (adapters / "a-link").symlink_to("adapters/a")
    (adapters / "run[1]").mkdir()
    (adapters / "run1").mkdir()
    found = targets(arguments.split())
    assert not any(one.problem for one in found)
    assert [one.path for one in found] == expected.split()


def test_a_folder_of_several_runs_is_refused_with_the_glob_that_names_them(adapters: Path) -> None:
    [one] = targets(["adapters/"])
    assert one.problem == (
        "adapters: holds 2 adapters or runs and is none itself; "
        "name them with a glob in quotes: 'adapters/*/'"
    )
    # Parts of one run have its logs beside them.
    (adapters / "adapters/train.log").touch()
    assert [one.problem for one in targets(["adapters/"])] == [""]
    (adapters / "adapters/train.log").unlink()
    # A run with saves below it is one.
    (adapters / "adapters/adapter_config.json").touch()
    assert [one.problem for one in targets(["adapters/"])] == [""]


@pytest.mark.parametrize("name", [*FILE_NAMES, CONFIG_NAME])
def test_a_folder_is_a_run_by_each_name_that_an_adapter_may_have(tmp_path: Path, name: str) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    (target,) = targets([str(tmp_path)])
    assert "holds 2 adapters or runs" in target.problem


def test_what_names_nothing_is_an_item_that_cannot_be_examined(adapters: Path) -> None:
    missing, unmatched, sound = targets(["none", "none/*/", "adapters/a"])
    assert missing.problem == "none: there is no such file or folder; check the path"
    assert unmatched.problem == "none/*/: nothing matches; check the pattern"
    assert sound.problem == ""
