"""What models measured is kept and read back: of these very files, and of no others."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from mlxdoctor.api import _read_back, diagnose
from mlxdoctor.cli import main
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.formats.summary import read_back
from mlxdoctor.measure.kept import code_version as versions
from mlxdoctor.measure.kept.bindings import named
from mlxdoctor.measure.kept.measured_file import VERSION, MeasuredFile
from mlxdoctor.models import load as models
from mlxdoctor.report import Report
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import using
from mlxdoctor.safety.time_budget import TimeBudget
from tests.conftest import FIXTURES, RUNS

RUN = "collapse-frequent-token"


@dataclass(frozen=True)
class Engine:
    """Stands for models in memory; how often it was started is counted."""

    kind: ClassVar[str] = ""
    is_models: ClassVar[bool] = True
    started: ClassVar[list[str]] = []

    sources: tuple[Source, ...] = ()

    @classmethod
    def find(cls, run: RunView) -> Engine:
        if not run.allow_model:
            raise Missing("no model was run")
        cls.started.append(run.name)
        return cls()


@dataclass(frozen=True)
class Ground:
    """Evidence that code makes of files."""

    kind: ClassVar[str] = "ground"
    made: ClassVar[list[int]] = []

    sources: tuple[Source, ...]
    heights: NDArray[np.int32]

    @classmethod
    def find(cls, run: RunView) -> Ground:
        return cls((), np.array(cls.made, np.int32))


@dataclass(frozen=True)
class Echo:
    """Evidence that is measured with it, part of it when asked for."""

    kind: ClassVar[str] = "echoes"

    sources: tuple[Source, ...]
    heights: NDArray[np.float32]
    named: Mapping[str, float]
    measure: Callable[[str, int], tuple[float, ...]]
    left_out: str = ""

    @classmethod
    def find(cls, run: RunView) -> Echo:
        run.need(Engine)
        run.get(Dataset)
        run.get(Ground)
        config = run.need(TrainingConfig)
        if config.iters == 13:
            raise Missing("this engine does not start on a Friday")

        def measure(name: str, count: int) -> tuple[float, ...]:
            if count > 5:
                raise InputError(None, "no more than five")
            Engine.started.append(name)
            return (float("nan"), *map(float, range(count)))

        left = "1 of 2 rows: the budget" if run.budget.seconds == 1 else ""
        return cls(config.sources, np.arange(3, dtype=np.float32), {"ä": 0.1}, measure, left)


@pytest.fixture(autouse=True)
def engine() -> list[str]:
    Engine.started.clear()
    return Engine.started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with its adapter and configuration."""
    made = tmp_path / "run"
    made.mkdir()
    (made / "adapters.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (made / "adapter_config.json").write_text('{"iters": 30, "learning_rate": 1e-5}')
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "measured.json"


def run_of(folder: Path, file: Path, **options: Any) -> Run:
    return Run.discover([folder], measured=file, **options)


def asked(folder: Path, file: Path, count: int = 2, **options: Any) -> tuple[Run, Echo | None]:
    run = run_of(folder, file, **options)
    with run.keeping():
        echo = run.get(Echo)
        if echo is not None:
            echo.measure("valid", count)
    return run, echo


def of(run: Run) -> MeasuredFile:
    assert run.measured is not None
    return run.measured


def test_what_was_measured_is_read_back_and_nothing_is_started(
    folder: Path, file: Path, engine: list[str]
) -> None:
    asked(folder, file)
    assert engine == ["run", "valid"]
    run, echo = asked(folder, file, allow_model=False)
    assert engine == ["run", "valid"]
    assert echo is not None
    assert echo.heights.dtype == np.float32
    assert echo.heights.tolist() == [0, 1, 2]
    assert echo.named == {"ä": 0.1}
    assert np.array_equal(echo.measure("valid", 2), (np.nan, 0, 1), equal_nan=True)
    assert [one.path.name for one in echo.sources] == ["adapter_config.json"]
    assert list(of(run).used) == ["echoes"]


def test_what_is_asked_for_besides_is_measured_and_added(
    folder: Path, file: Path, engine: list[str]
) -> None:
    asked(folder, file)
    asked(folder, file, count=3)
    assert engine == ["run", "valid", "run", "valid"]
    asked(folder, file, count=3)
    asked(folder, file, count=2)
    assert engine == ["run", "valid", "run", "valid"]
    with pytest.raises(InputError, match="holds less of the echoes than is asked for; no model"):
        asked(folder, file, count=4, allow_model=False)


def test_why_something_could_not_be_measured_is_kept_too(
    folder: Path, file: Path, engine: list[str]
) -> None:
    (folder / "adapter_config.json").write_text('{"iters": 13}')
    for _ in range(2):
        run, echo = asked(folder, file)
        assert echo is None
        assert run.why_missing(Echo) == "this engine does not start on a Friday"
        assert ("echoes", "this engine does not start on a Friday") in run.missing
    assert engine == ["run"]


def test_an_error_that_measuring_ended_with_is_kept_too(folder: Path, file: Path) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="no more than five"):
            asked(folder, file, count=6)


def test_without_models_there_is_nothing_to_keep(folder: Path, file: Path) -> None:
    asked(folder, file, allow_model=False)
    assert not file.exists()


@pytest.mark.parametrize("name", ["adapters.safetensors", "adapter_config.json"])
def test_of_a_changed_file_nothing_is_used(
    folder: Path, file: Path, engine: list[str], name: str
) -> None:
    asked(folder, file)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content.replace(b"}", b" }"))
    run, echo = asked(folder, file, allow_model=False)
    assert echo is None
    (reason,) = of(run).unused.values()
    assert reason.startswith(f"{name} (the ")
    assert reason.endswith(" is not the file that it was measured from")
    # With models it is measured anew, and that is kept.
    asked(folder, file)
    assert engine == ["run", "valid"] * 2
    asked(folder, file)
    assert engine == ["run", "valid"] * 2


def test_a_file_that_was_not_there_makes_another_run(folder: Path, file: Path) -> None:
    asked(folder, file)
    (folder / "train.jsonl").write_text('{"text": "a row"}\n' * 4)
    run, echo = asked(folder, file, allow_model=False)
    assert echo is None
    assert of(run).unused == {"echoes": "there was no dataset when it was measured"}


def test_files_that_are_not_here_are_named(folder: Path, file: Path) -> None:
    asked(folder, file)
    (folder / "adapters.safetensors").unlink()
    run, echo = asked(folder, file, allow_model=False)
    assert echo is not None
    assert named(of(run).absent) == ["the adapter (adapters.safetensors)"]
    (folder / "adapter_config.json").unlink()
    (folder / "train.log").write_text("Iter 10: Train loss 2.5, Learning Rate 1.0e-5\n" * 9)
    run, echo = asked(folder, file, allow_model=False)
    assert echo is None
    assert "neither the adapter nor the configuration" in of(run).unused["echoes"]


def test_what_a_small_budget_left_out_is_measured_by_a_larger_one(
    folder: Path, file: Path, engine: list[str]
) -> None:
    asked(folder, file, budget=TimeBudget(1))
    for seconds in (1, 0.5):
        run, _ = asked(folder, file, budget=TimeBudget(seconds))
        assert list(of(run).used) == ["echoes"]
        assert run.left_out == ("1 of 2 rows: the budget",)
    # Better than nothing, where no model may be run.
    run, _ = asked(folder, file, budget=TimeBudget(60), allow_model=False)
    assert list(of(run).used) == ["echoes"]
    run, _ = asked(folder, file, budget=TimeBudget(60))
    assert of(run).unused == {"echoes": "a budget of 1 s left a part of it out"}
    assert engine == ["run", "valid"] * 2
    run, _ = asked(folder, file, budget=TimeBudget(1))
    assert list(of(run).used) == ["echoes"]
    assert run.left_out == ()


def test_what_other_code_measured_is_not_used(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(folder, file)
    monkeypatch.setattr(versions, "_version", lambda module: "another")
    run, echo = asked(folder, file, allow_model=False)
    assert echo is None
    assert of(run).unused == {"echoes": "another version of mlxdoctor measured it"}


def test_rows_that_other_code_makes_of_the_same_files_are_others(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(folder, file)
    monkeypatch.setattr(Ground, "made", [1])
    run, echo = asked(folder, file, allow_model=False)
    assert echo is None
    assert of(run).unused == {"echoes": "the ground are not what they were when it was measured"}


def test_the_files_that_are_too_large_are_compared_in_part(folder: Path, file: Path) -> None:
    (folder / "adapters.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}" + bytes(3 << 20))
    with using(["hashed_bytes=1M"]):
        asked(folder, file)
        run, _ = asked(folder, file, allow_model=False)
        assert named(of(run).sampled) == ["the adapter (adapters.safetensors)"]
        with (folder / "adapters.safetensors").open("r+b") as stream:
            stream.seek(2 << 20)
            stream.write(b"1")
        run, _ = asked(folder, file, allow_model=False)
        assert list(of(run).unused) == ["echoes"]


def test_it_is_packed_by_its_name(folder: Path, tmp_path: Path) -> None:
    plain, packed = tmp_path / "measured.json", tmp_path / "measured.json.gz"
    for file in (plain, packed):
        asked(folder, file)
        run, _ = asked(folder, file, allow_model=False)
        assert list(of(run).used) == ["echoes"]
    kept = [json.loads(plain.read_bytes()), json.loads(gzip.decompress(packed.read_bytes()))]
    for one in kept:
        (entry,) = one["measured"].values()
        entry["made"] = None
    assert kept[0] == kept[1]


@pytest.mark.parametrize("place", ["run/measured.json", "run/below/measured.json"])
def test_nothing_is_written_into_what_is_inspected(
    folder: Path, tmp_path: Path, place: str
) -> None:
    with pytest.raises(InputError, match="in which nothing is written; name a file elsewhere"):
        run_of(folder, tmp_path / place)


def test_a_file_that_cannot_be_written_costs_nothing_else(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file, and no folder")
    run, echo = asked(folder, tmp_path / "kept" / "measured.json")
    assert echo is not None
    (error,) = run.unreadable
    assert "what was measured is not kept" in str(error)
    assert _read_back(run) is None


def test_a_file_that_is_not_there_is_said_where_no_model_fills_it(folder: Path, file: Path) -> None:
    report = diagnose([folder], measured=file, allow_model=False)
    said = f"There is no {file} to read, and no model was run that would fill it."
    assert read_back(report.read_back) == said
    assert not file.exists()


NEWER = json.dumps({"format": "mlxdoctor measurements", "version": VERSION + 1})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\x80\x04K\x01.", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"loss": NaN}', "it is not JSON"),
        (b'{"loss": 1}', "is JSON, and no file of measurements"),
        (b'{"format": "mlxdoctor measurements", "version": 1}', "is a damaged file"),
        (b'{"format": "mlxdoctor measurements", "version": true}', "is a damaged file"),
        (NEWER.encode(), r"newer mlxdoctor \(format 2; this one reads 1\); update mlxdoctor"),
        (gzip.compress(b"{}" * 999, mtime=0)[:-20], "cut off|damaged .gz"),
        (b"\x1f\x8b\x08 and more", "damaged .gz"),
    ],
)
def test_garbage_is_refused_in_a_sentence(
    folder: Path, tmp_path: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "measured.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        run_of(folder, file)
    assert main(["diagnose", str(folder), "--stdout", "json", "--measured", str(file)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert file.read_bytes() == content


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "measured.json.gz"
    file.write_bytes(gzip.compress(bytes(3 << 20)))
    with using(["measured_bytes=2M"]), pytest.raises(InputError, match="unpacks to more than"):
        run_of(folder, file)


def _with(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    return lambda content: change(next(iter(content["measured"].values())))


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], None], bool]] = {
    "a file elsewhere": (lambda one: one["files"][0].__setitem__(1, "../../secret"), True),
    "no such part": (lambda one: one["files"][0].__setitem__(0, "password"), True),
    "no such file": (_with(lambda one: one["files"].append(99)), True),
    "a negative place": (_with(lambda one: one["files"].append(-1)), True),
    "no date": (_with(lambda one: one["made"].pop("at")), True),
    "a failure of no kind": (_with(lambda one: one.update(failure=["bang", "", "", ""])), True),
    "no value": (_with(lambda one: one.update(value=None)), False),
    "a shape too large": (_with(lambda one: one["value"]["heights"].__setitem__(0, [4])), False),
    "a negative shape": (_with(lambda one: one["value"]["heights"].__setitem__(0, [-3])), False),
    "no base64": (_with(lambda one: one["value"]["heights"].__setitem__(1, "*")), False),
    "a text for a number": (_with(lambda one: one["value"]["named"].append(["b", "c"])), False),
    "a key twice": (_with(lambda one: one["value"]["named"].append(["ä", 1])), False),
    "a field too many": (_with(lambda one: one["value"].update(more=1)), False),
    "no answers": (_with(lambda one: one["value"].update(measure={"answers": [1]})), False),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_said_and_measured_anew(
    folder: Path, file: Path, engine: list[str], name: str
) -> None:
    change, refused = DAMAGE[name]
    asked(folder, file)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    if refused:
        with pytest.raises(InputError, match="damaged file of measurements"):
            run_of(folder, file)
        return
    run, echo = asked(folder, file)
    assert echo is not None
    assert engine == ["run", "valid"] * 2
    (error,) = run.unreadable
    assert "what it holds as echoes is damaged" in str(error)


def test_a_kind_that_nobody_has_loaded_is_not_imported(folder: Path, file: Path) -> None:
    asked(folder, file)
    content = json.loads(file.read_text())
    (entry,) = content["measured"].values()
    entry["present"] = dict.fromkeys(("antigravity:Sky", "os:system", "mlxdoctor.run:Run"), "")
    file.write_text(json.dumps(content))
    run, _ = asked(folder, file, allow_model=False)
    assert list(of(run).used) == ["echoes"]


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Report]:
    """A fixture run with its file of measurements, and the report that came with it."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(RUNS / RUN, folder / RUN)
    file = folder / "measured.json.gz"
    return folder / RUN, file, diagnosed(folder / RUN, file)


def diagnosed(run: Path, file: Path, **options: Any) -> Report:
    given = {"base": FIXTURES / "base", "data": FIXTURES / "data" / "geography"}
    return diagnose([run], **given | options, measured=file)


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(models, "_load_model", refuse)


def compared(report: Report) -> dict[str, Any]:
    """The report without times, and without where its figures come from."""
    data = replace(report.alone, read_back=None).to_dict()
    del data["commands"]
    for one in data["outcomes"]:
        del one["seconds"]
    kinds = [one for one in data["run"]["evidence"] if one["kind"] != "what models measured"]
    data["run"]["evidence"] = sorted(kinds, key=repr)
    return json.loads(json.dumps(data, sort_keys=True, default=str))


@pytest.mark.slow
def test_the_second_report_is_the_first_and_no_model_is_loaded(
    measured_run: tuple[Path, Path, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file, first = measured_run
    before = file.read_bytes()
    no_model(monkeypatch)
    second = diagnosed(run, file)
    assert compared(second) == compared(first)
    assert first.read_back is None
    assert second.read_back is not None
    kept = json.loads(gzip.decompress(before))["measured"]
    assert len(second.read_back.kinds) == len(kept) == 7
    said = read_back(second.read_back)
    assert said.startswith(f"Read from {file} and not measured now: answers, ")
    assert said.endswith(".")
    assert read_back(first.read_back) == ""
    assert file.read_bytes() == before
    listed = {one.kind: one for one in second.evidence}["what models measured"]
    assert listed.source == str(file)


@pytest.mark.slow
def test_on_a_machine_without_the_models_their_findings_stay(
    measured_run: tuple[Path, Path, Report], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, file, first = measured_run
    alone = tmp_path / RUN
    alone.mkdir()
    for name in ("adapter_config.json", "train.log"):
        shutil.copy(run / name, alone / name)
    no_model(monkeypatch)
    there = diagnosed(alone, file, base=None, data=None)
    assert there.diagnosis[0].cause == first.diagnosis[0].cause
    codes = {one.code for one in first.findings}
    of_models = {one for one in codes if one.startswith(("token-collapse.", "general-text."))}
    assert of_models
    assert of_models <= {one.code for one in there.findings}
    assert there.read_back is not None
    assert there.read_back.absent == (
        "the adapter (adapters.safetensors)",
        "the base model (6 files)",
        "the data (3 files)",
        "the recorded answers (generations.jsonl)",
    )
    assert "Not here, and so not compared with what it was measured from: the adapter" in read_back(
        there.read_back
    )


@pytest.mark.slow
def test_of_another_adapter_nothing_is_used(
    measured_run: tuple[Path, Path, Report], tmp_path: Path
) -> None:
    run, file, _ = measured_run
    other = tmp_path / RUN
    shutil.copytree(run, other)
    shutil.copy(other / "0000100_adapters.safetensors", other / "adapters.safetensors")
    static = diagnosed(other, file, allow_model=False)
    assert static.read_back is not None
    assert static.read_back.kinds == ()
    assert set(static.read_back.unused.values()) == {
        "adapters.safetensors (the adapter) is not the file that it was measured from"
    }
    assert f"{file} was not used for answers, " in read_back(static.read_back)


@pytest.mark.slow
def test_a_file_that_lacks_something_is_filled(
    measured_run: tuple[Path, Path, Report], tmp_path: Path
) -> None:
    run, whole, first = measured_run
    content = json.loads(gzip.decompress(whole.read_bytes()))
    name = "mlxdoctor.models.general_text:GeneralText"
    lacking = content["measured"].pop(name)
    file = tmp_path / "half.json"
    file.write_text(json.dumps(content))
    second = diagnosed(run, file)
    assert compared(second) == compared(first)
    filled = json.loads(file.read_text())["measured"]
    assert filled[name]["value"]["tuned"] == pytest.approx(lacking["value"]["tuned"])
    assert filled.keys() == content["measured"].keys() | {name}
