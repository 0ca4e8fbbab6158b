from __future__ import annotations

from typing import Any

import pytest

from mlxdoctor.formats.model import Report, findings, without_folders
from tests.formats import sample


@pytest.mark.parametrize("kind", ["unhealthy", "healthy", "inconclusive"])
def test_a_complete_report_is_accepted_and_given_back(kind: str) -> None:
    data = getattr(sample, kind)()
    assert Report(data).to_dict() == data


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"verdict": "fine"}, "report.verdict is 'fine'"),
        ({"extra": 1}, "report.extra is unknown"),
        ({"schema_version": "1"}, "report.schema_version is a str"),
        ({"diagnosis": {}}, "report.diagnosis is a dict, not a list"),
        ({"next": {"kind": "x", "why": "y"}}, "report.next.how is missing"),
        ({"causes": {}}, "report.causes lacks learning-rate-too-high, scale-too-large"),
        ({"commands": "mlxdoctor"}, "report.commands is a str, not a list"),
        ({"timeline": [{"iteration": True, "event": ""}]}, "iteration is a bool"),
    ],
)
def test_a_wrong_section_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("[", r"\[")):
        Report(sample.unhealthy() | change)


def test_a_missing_section_is_refused_by_name() -> None:
    data = sample.unhealthy()
    del data["outcomes"]
    with pytest.raises(ValueError, match=r"report\.outcomes is missing"):
        Report(data)


def test_a_report_does_not_follow_later_changes_of_its_sections() -> None:
    data = sample.healthy()
    report = Report(data)
    data["verdict"] = "unhealthy"
    assert report.data["verdict"] == "healthy"
    with pytest.raises(TypeError):
        report.data["verdict"] = "unhealthy"  # type: ignore[index]


def test_findings_come_worst_first() -> None:
    severities = [one["severity"] for one in findings(sample.unhealthy())]
    assert severities == ["error", "error", "info"]


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
    assert without_folders({"a": [text]}, ["/train"]) == {"a": [expected]}


def test_the_longest_folder_is_cut_off() -> None:
    assert without_folders("/home/me/train/x", ["/home/me", "/home/me/train/"]) == "x"


def test_the_home_folder_becomes_a_tilde() -> None:
    folders, home = ["/home/me/train"], "/home/me"
    assert without_folders("/home/me/train/x /home/me/y", folders, home) == "x ~/y"
    assert without_folders("/home/me: is a folder", folders, home) == "~: is a folder"
    assert without_folders("/home/me", ["/home/me"], home) == "~"


def test_other_values_pass_unchanged() -> None:
    assert without_folders({"a": (1, None, 2.5)}, ["/train"]) == {"a": [1, None, 2.5]}
