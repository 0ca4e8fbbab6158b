"""Texts changed wherever they stand, and folders cut off the paths in them."""

import pytest

from mlxdoctor.finding import Finding, Severity
from mlxdoctor.safety.texts import mapped, without_folders


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/train/runs/a/train.log", "runs/a/train.log"),
        ("/train: is a folder", ".: is a folder"),
        ("/train/", "."),
        ("in '/train/runs/x.json', line 3", "in 'runs/x.json', line 3"),
        ("/trainshop/x and /homework/x", "/trainshop/x and /homework/x"),
        ("/mnt/train/x", "/mnt/train/x"),
        ("nothing here", "nothing here"),
    ],
)
def test_absolute_folders_are_cut_off_paths(text: str, expected: str) -> None:
    assert without_folders({"a": [text]}, "/train") == {"a": [expected]}


def test_the_home_folder_becomes_a_tilde() -> None:
    here, home = "/home/me/train/", "/home/me"
    assert without_folders("/home/me/train/x /home/me/y", here, home) == "x ~/y"
    assert without_folders("/home/me: is a folder", here, home) == "~: is a folder"
    assert without_folders("/home/me", "/home/me", home) == "~"


def test_other_values_pass_unchanged() -> None:
    value = {"a": (1, None, 2.5)}
    assert without_folders(value, "/train") is value


def test_texts_of_a_frozen_dataclass_are_changed_and_what_it_is_stays() -> None:
    found = Finding("a.b", Severity.ERROR, "low", {"text": "low", "all": ("low", 1)}, where="low")
    loud = mapped(found, str.upper, frozenset({"code", "fingerprint"}))
    assert (loud.code, loud.severity, loud.message, loud.where) == (
        "a.b",
        Severity.ERROR,
        "LOW",
        "LOW",
    )
    assert dict(loud.measured) == {"text": "LOW", "all": ("LOW", 1)}
    assert loud.fingerprint == found.fingerprint
    assert mapped(found, str) is found
