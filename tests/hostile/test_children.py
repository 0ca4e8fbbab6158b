"""Files and code that kill or hang the process that reads them, and what is said then."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from fixtures.lab.cases.workshop import copied_base, copied_run, write_rows
from mlxdoctor.gate.gating import FEW_ITEMS
from tests.conftest import FIXTURES, HEALTHY
from tests.processes import python

pytestmark = pytest.mark.slow

DATA = FIXTURES / "data" / "geography"
Edit = Callable[[dict[str, Any]], None]

#: Half a million tries at each character: below what makes the library give up.
SLOW = r"(.|.){19}[^\s\S]"


def mlxdoctor(*arguments: str | Path, **limits: str) -> CompletedProcess[str]:
    """The program as a user starts it."""
    stated = ",".join(f"{name}={value}" for name, value in limits.items())
    environment = {"NO_COLOR": "1", "MLXDOCTOR_LIMITS": stated}
    return python("-m", "mlxdoctor", *arguments, environment=environment, timeout=300)


def run_with(folder: Path, edit: Edit | None = None, data: Path = DATA) -> Path:
    """A sound run on a base whose tokenizer was edited."""
    base = copied_base(folder / "base")
    run = copied_run(folder / "run", model=str(base), data=str(data))
    if edit is not None:
        change(base / "tokenizer.json", edit)
    return run


def change(path: Path, edit: Edit) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def slow_split(tokenizer: dict[str, Any]) -> None:
    split = {"type": "Split", "pattern": {"Regex": SLOW}, "behavior": "Isolated", "invert": False}
    steps = [split, tokenizer["pre_tokenizer"]]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}


def slow_replace(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"Regex": SLOW}, "content": "x"}


def panics(tokenizer: dict[str, Any]) -> None:
    pattern = {"Regex": r"(.|.)+[^\s\S]"}
    tokenizer["normalizer"] = {"type": "Replace", "pattern": pattern, "content": "x"}


def grows(tokenizer: dict[str, Any]) -> None:
    """225 times: below what is refused."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 15}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [step, step]}


def long_rows(folder: Path) -> Path:
    """Data whose rows are two million letters."""
    rows = [{"prompt": "a" * 2_000_000, "completion": "b"}] * 2
    return write_rows(folder, train=rows, valid=rows)


@pytest.mark.parametrize("edit", [slow_split, slow_replace])
def test_a_tokenizer_that_takes_all_day_is_left_out(edit: Edit, tmp_path: Path) -> None:
    run = run_with(tmp_path, edit)
    done = mlxdoctor("diagnose", run, "--no-generate", "--stdout", "json", tokenizer_seconds="0.3")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    # The parent ends a call that lasts; calls that come back, and are slow, are counted.
    assert " was stopped: it took over 0.3 s" in last or "tokenizer.json: took " in last
    report = json.loads(done.stdout)
    assert report["verdict"] != "healthy"
    status = {one["check"]: one["status"] for one in report["outcomes"]}
    assert status["loss-trend"] == "passed"
    assert status["adapter-presence"] == "passed"


def test_a_library_that_panics_is_one_sentence(tmp_path: Path) -> None:
    done = mlxdoctor("diagnose", run_with(tmp_path, panics), "--no-generate", "--stdout", "json")
    assert done.returncode == 2
    assert "panicked" not in done.stderr
    assert "tokenizer.json: cannot encode a text (" in done.stderr.splitlines()[-1]


def test_the_gate_judges_the_others_and_the_rest_of_the_hostile_one(tmp_path: Path) -> None:
    hostile = run_with(tmp_path / "hostile", grows, long_rows(tmp_path / "data"))
    useless = run_with(tmp_path / "useless")
    change(useless / "adapter_config.json", lambda one: one["lora_parameters"].update(scale=0.0))
    # So many that processes are started for them.
    logs = [tmp_path / f"{number}.log" for number in range(FEW_ITEMS)]
    for log in logs:
        shutil.copy(HEALTHY / "train.log", log)
    items = [*logs[:3], hostile, *logs[3:], useless]
    done = mlxdoctor("gate", *items, "--jobs", "2", "--stdout", "json", stage_bytes="300M")
    found = {Path(one["path"]): one for one in json.loads(done.stdout)["items"]}
    assert list(found) == items
    assert done.returncode == 1
    assert len({found[one]["status"] for one in logs}) == 1
    assert found[useless]["status"] == "failed"
    assert found[hostile]["status"] == "unusable"
    assert any(
        one.startswith(f"the tokenizer of {tmp_path / 'hostile' / 'base'} was stopped: ")
        and "GB of memory; if that is sound" in one
        for one in found[hostile]["reasons"]
    )
    assert "loss-trend" in found[hostile]["checks"]["passed"]


#: More deaths: tests/safety.
CODE = {
    "import ctypes; ctypes.string_at(0)": "a library crashed in it (SIGSEGV)",
    "import time; time.sleep(3600)": "it did nothing for 0.5 s",
    "sum(range(10**12))": "it took over 0.5 s",
}


@pytest.mark.parametrize(("code", "why"), CODE.items())
def test_code_of_ones_own_is_named(code: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(f"def parts():\n    {code}\n")
    done = mlxdoctor("probe", f"{file}:parts", code_seconds="0.5")
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert f":parts was stopped: {why}" in last
    advice = "; if that is sound, raise the limit with --limit code_seconds=N"
    assert last.endswith(advice) is ("0.5 s" in why)
