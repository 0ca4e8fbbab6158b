import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.formats.format import text_of
from mlxdoctor.gate import gating as run
from mlxdoctor.gate.examine import Examined, Function, Options, examine
from mlxdoctor.gate.gating import exit_code, run_gate
from mlxdoctor.gate.policy import Policy
from mlxdoctor.gate.workers import Workers, here
from mlxdoctor.gate_result import GateResult, ItemStatus
from tests.conftest import BASE, HEALTHY, RUNS, expected, run_names
from tests.formats import sample
from tests.gate.given import found, report


def gate(*paths: object, policy: Policy | None = None, **options: Any) -> GateResult:
    policy = policy or Policy(Path.cwd())
    return run_gate([str(one) for one in paths], policy, options=Options(**options))[0]


@dataclass
class Examining:
    """In place of `examine`: what each item comes to, and the items whose models were run.

    The work is interrupted at the item that is called "late" where it is of the kind `late`.
    """

    late: bool | None = None
    asked: list[str] = field(default_factory=list)

    def __call__(self, item: str, options: Options) -> Examined:
        name = Path(item).name
        if name == "late.log" and self.late is options.generate:
            raise KeyboardInterrupt
        self.asked += [name] if options.generate else []
        errors = {"broken.log": "learning-rate.zero", "large.log": "weight-drift.exploded"}
        told = report(*(found(errors[name]) for _ in range(name in errors)))
        return Examined(sample.made(told), "", 0.0)


@pytest.mark.parametrize(
    ("names", "late", "asked", "unfinished"),
    [
        ("sound broken late", None, ["sound.log", "late.log"], []),
        ("sound broken late", True, ["sound.log"], ["late.log"]),
        ("sound broken late", False, [], ["sound.log", "late.log"]),
        # What a run that learned is left with fails it no more.
        ("large", None, ["large.log"], []),
    ],
)
def test_models_are_not_run_for_what_the_files_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    names: str,
    late: bool | None,
    asked: list[str],
    unfinished: list[str],
) -> None:
    paths = [tmp_path / f"{name}.log" for name in names.split()]
    for path in paths:
        path.write_text("nothing\n")
    examining = Examining(late)
    monkeypatch.setattr(run, "examine", examining)
    monkeypatch.setattr(run, "processes", lambda _, function: here(function))
    result = gate(*paths, generate=True)
    assert examining.asked == asked
    assert [Path(path).name for path in result.unfinished] == unfinished
    statuses = {Path(item.path).name: item.status for item in result.items}
    assert statuses.keys() | set(unfinished) == {path.name for path in paths}
    failed = {name for name, status in statuses.items() if status is ItemStatus.FAILED}
    assert failed == {"broken.log"} & statuses.keys()


@pytest.mark.slow
def test_every_fixture_run_is_judged_as_it_is_known_to_be() -> None:
    """Static checks, in processes: in order, and as `diagnose` says of each alone."""
    result = gate(f"{RUNS}/*/", jobs=2)
    assert [Path(one.path).name for one in result.items] == run_names()
    for item in result.items:
        healthy = expected(Path(item.path).name)["cause"] is None
        assert item.status is (ItemStatus.PASSED if healthy else ItemStatus.FAILED)
    assert exit_code(result.items) == 1


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ("", 0),
        ("passed", 0),
        ("passed inconclusive", 3),
        ("inconclusive unusable", 2),
        ("inconclusive unusable failed passed", 1),
    ],
)
def test_the_first_exit_code_that_holds(statuses: str, code: int) -> None:
    items = [run.GateItem("x", ItemStatus(one)) for one in statuses.split()]
    assert exit_code(items) == code


@pytest.mark.slow
def test_an_item_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_ends(*_: object, **__: object) -> None:
        while True:
            pass

    monkeypatch.setattr("mlxdoctor.run.Run.get", never_ends)
    assert "took longer than 0.2 s" in examine(str(HEALTHY), Options(seconds=0.2)).problem


@pytest.mark.slow
def test_no_training_row_and_no_output_is_quoted_if_so_asked() -> None:
    path = RUNS / "collapse-frequent-token"
    quoted, withheld = (gate(path, with_text=one) for one in (True, False))
    assert "(withheld)" not in text_of(quoted, "json")
    assert "(withheld)" in text_of(withheld, "json")
    assert "(withheld)" in str(withheld.items[0].report)
    assert withheld.items[0].status is ItemStatus.FAILED


@pytest.mark.parametrize("with_text", [True, False])
def test_a_bug_of_ours_is_named_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, with_text: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("cannot encode 'the narwhal'")

    monkeypatch.setattr("mlxdoctor.api.diagnose", fails)
    [item] = gate(HEALTHY, with_text=with_text).items
    assert item.status is ItemStatus.UNUSABLE
    assert "healthy-ordinary: mlxdoctor itself failed on it (ValueError: " in item.reasons[0]
    assert "please report this as a bug" in item.reasons[0]
    assert ("narwhal" in item.reasons[0]) is with_text


def test_processes_are_started_only_where_they_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(jobs: int, function: Function) -> Workers:
        asked.append(jobs)
        return here(function)

    monkeypatch.setattr(run, "processes", counted)
    for number in range(3):
        (tmp_path / f"{number}.log").write_text("nothing\n")
    few = [tmp_path / f"{number}.log" for number in range(3)]
    gate(*few, jobs=8)
    gate(few[0], generate=True)
    assert asked == []
    monkeypatch.setattr(run, "examine", Examining())
    gate(*few, generate=True)
    monkeypatch.setattr(run, "FEW_ITEMS", 2)
    gate(*few, jobs=8)
    assert asked == [1, 3]


def test_a_held_report_keeps_what_formats_need_and_drops_what_a_page_shows() -> None:
    [item] = gate(HEALTHY).items
    assert item.report.figures == {}
    assert item.report.sample is None
    assert {one.check for one in item.report.outcomes} > {"loss-trend", "weight-drift"}
    assert item.report.evidence


def test_a_base_for_all_items_and_what_else_lies_there_is_said(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(HEALTHY, run)
    shutil.copytree(HEALTHY, run / "old")
    config = json.loads((run / "adapter_config.json").read_text())
    for folder in (run, run / "old"):
        text = json.dumps(config | {"model": "absent"})
        (folder / "adapter_config.json").write_text(text)
    (alone,) = gate(run).items
    assert [need.partition(":")[0] for need in alone.unseen] == [
        "needs the base",
        f"whether the adapter below, in {run / 'old'}, is sound",
    ]
    (given,) = gate(run, base=BASE).items
    assert given.unseen[0].startswith("needs --generate")
    both = gate(run, run / "old")
    said = "".join(text_of(both, "text").split())
    assert f"{run},{run / 'old'}:oneadapter" in said
    assert (
        text_of(replace(both, policy="a.toml", hidden="b.toml"), "text").count("b.toml above") == 1
    )
