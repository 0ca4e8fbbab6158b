"""What slips through the gate: the measured table, and some of its edits made anew."""

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.bypasses.catalogue import edits, make
from fixtures.lab.bypasses.folders import set_of
from fixtures.lab.bypasses.results import (
    SILENT,
    became,
    heard,
    is_broken,
    is_of_the_base,
    spoilt_by,
)
from mlxdoctor.gate.gating import run_gate
from mlxdoctor.gate.policy import Policy
from mlxdoctor.gate_result import ItemStatus
from tests.conftest import ROOT, RUNS

NOTHING: dict[str, Any] = {"findings": []}
RESULTS: dict[str, Any] = json.loads((ROOT / "reports" / "bypasses.json").read_text())


def test_nothing_that_is_broken_passes_without_a_word() -> None:
    broken = [name for name in RESULTS["edits"] if is_broken(name, RESULTS)]
    assert len(broken) >= 106
    silent = [
        (name, how)
        for name in broken
        for how in ("base", "absent")
        if heard(became(name, RESULTS), RESULTS["edits"][name]["gate"][how], how) == SILENT
    ]
    assert silent == []


def test_no_sound_adapter_is_stopped() -> None:
    sound = {name: one for name, one in RESULTS["sound"].items() if not spoilt_by(one["truth"])}
    assert len(sound) >= 100
    stopped = [
        (name, how)
        for name, one in sound.items()
        for how, said in one["gate"].items()
        if said["exit"]
    ]
    # Bases of other families are tiny and hardly pre-trained: with the models run, that is seen.
    for_the_base = {
        (name, "generate")
        for name, one in sound.items()
        if one["kind"] == "other families" and is_of_the_base(one["gate"].get("generate", NOTHING))
    }
    stopped = [one for one in stopped if one not in for_the_base]
    assert stopped == []


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("scale-string", ItemStatus.FAILED, "adapter-structure.setting-refused"),
        ("a-b-swapped", ItemStatus.FAILED, "adapter-structure.sizes-disagree"),
        ("absolute", ItemStatus.FAILED, "adapter-presence.untrained-values"),
        ("three-levels", ItemStatus.FAILED, "adapter-presence.untrained-values"),
        ("one-a-everywhere", ItemStatus.PASSED, "adapter-presence.untrained-values"),
        ("names-of-an-moe", ItemStatus.PASSED, None),
        ("both-formats", ItemStatus.FAILED, "adapter-presence.zero-b"),
        ("dangling-link", ItemStatus.UNUSABLE, None),
        ("lfs-pointer", ItemStatus.UNUSABLE, None),
        ("both-signs", ItemStatus.PASSED, None),
    ],
)
def test_an_edit(tmp_path: Path, name: str, status: ItemStatus, code: str | None) -> None:
    folder = tmp_path / name
    make(edits()[name], folder, start=RUNS / "healthy-ordinary")
    set_of(folder, model="someone/elsewhere", data="rows")
    (item,) = run_gate([str(folder)], Policy(tmp_path))[0].items
    assert item.status is status
    found = [one.finding.code for one in item.findings if one.finding.severity != "info"]
    assert found[:1] == ([code] if code else [])
    assert item.unseen if status is ItemStatus.PASSED else item.reasons
