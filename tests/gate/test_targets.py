from __future__ import annotations

from pathlib import Path

import pytest

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


def paths(*arguments: str) -> list[str]:
    found = targets(arguments)
    assert not any(one.problem for one in found)
    return [one.path for one in found]


def test_arguments_keep_their_order_and_globs_go_by_name(adapters: Path) -> None:
    assert paths("adapters/more/c", "adapters/?") == [
        "adapters/more/c",
        "adapters/a",
        "adapters/b",
    ]


def test_a_slash_at_the_end_names_folders_the_empty_one_too(adapters: Path) -> None:
    assert paths("adapters/*/") == ["adapters/a", "adapters/b", "adapters/empty", "adapters/more"]
    assert "adapters/README.md" in paths("adapters/*")


def test_two_stars_cross_folders(adapters: Path) -> None:
    assert paths("adapters/**/adapters.safetensors") == [
        "adapters/a/adapters.safetensors",
        "adapters/b/adapters.safetensors",
        "adapters/more/c/adapters.safetensors",
    ]


def test_an_item_that_is_named_twice_is_examined_once(adapters: Path) -> None:
    assert paths("adapters/a/", "adapters/?", "./adapters/a") == ["adapters/a", "adapters/b"]


def test_a_link_does_not_take_the_name_of_what_it_leads_to(adapters: Path) -> None:
    (adapters / "a-link").symlink_to("adapters/a")
    assert paths("a-link", "adapters/?") == ["adapters/a", "adapters/b"]
    assert paths("adapters/?", "a-link") == ["adapters/a", "adapters/b"]
    assert paths("a-link") == ["a-link"]


def test_a_folder_of_several_runs_is_refused_with_the_glob_that_names_them(adapters: Path) -> None:
    [one] = targets(["adapters/"])
    assert one.problem == (
        "adapters: holds 2 adapters or runs and is none itself; "
        "name them with a glob in quotes: 'adapters/*/'"
    )
    # What holds one run in a folder below is that run, and so is one with saves below it.
    assert paths("adapters/more") == ["adapters/more"]
    (adapters / "adapters/adapter_config.json").touch()
    assert paths("adapters") == ["adapters"]


def test_what_names_nothing_is_an_item_that_cannot_be_examined(adapters: Path) -> None:
    missing, unmatched, sound = targets(["none", "none/*/", "adapters/a"])
    assert missing.problem == "none: there is no such file or folder; check the path"
    assert unmatched.problem == "none/*/: nothing matches; check the pattern"
    assert sound.problem == ""


def test_a_name_with_brackets_is_a_name_first(adapters: Path) -> None:
    (adapters / "run[1]").mkdir()
    (adapters / "run1").mkdir()
    assert paths("run[1]") == ["run[1]"]
