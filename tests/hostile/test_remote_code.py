"""Code that came with a model: reported, never run, wherever a model is loaded."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.lab.cases.workshop import copied_base, copied_run
from mlxdoctor.api import diagnose
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.models.load import load, load_tokenizer, load_weights, require_plain
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin import Settings
from mlxdoctor.twin.prepared import parts_of
from tests.conftest import RUNS


@pytest.fixture
def trapped(tmp_path: Path) -> Callable[[str, object], Path]:
    """A copy of the base whose code leaves a mark when it runs; the key names it."""

    def make(key: str, value: object, file: str = "config.json") -> Path:
        folder = copied_base(tmp_path / "trapped", **{Path(file).stem: {key: value}})
        trap = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        (folder / "trap.py").write_text(trap)
        return folder

    return make


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path) -> Iterator[None]:
    yield
    assert not (tmp_path / "ran").exists()


TRAPS = (
    ("model_file", "trap.py", "config.json"),
    ("auto_map", {"AutoModelForCausalLM": "trap.Model"}, "config.json"),
    ("auto_map", {"AutoTokenizer": ["trap.T", None]}, "tokenizer_config.json"),
)


@pytest.mark.parametrize(("key", "value", "file"), TRAPS)
def test_no_loader_of_ours_runs_it(
    trapped: Callable[..., Path], key: str, value: object, file: str, tmp_path: Path
) -> None:
    folder = trapped(key, value, file)
    trusting = {"model": str(folder), "data": str(tmp_path), "trust_remote_code": True}
    settings = Settings.from_values(trusting)
    loaders: tuple[Callable[[], object], ...] = (
        lambda: require_plain(folder),
        lambda: load_weights(folder),
        lambda: load_tokenizer(folder),
        lambda: load(BaseModel.read(folder)),
        lambda: parts_of(settings).load(settings),
    )
    for loader in loaders:
        with pytest.raises(InputError, match=f"needs code of its own \\({key} in {file}\\)"):
            loader()


def test_diagnose_reports_it_and_goes_on(trapped: Callable[..., Path]) -> None:
    folder = trapped("model_file", "trap.py")
    report = diagnose([RUNS / "healthy-ordinary"], base=folder)
    (named,) = [one for one in report.findings if one.code == "remote-code.named"]
    assert named.severity == "warning"
    assert "model_file is “trap.py”" in named.message
    assert not any(one.status == "crashed" for one in report.outcomes)


def test_trust_beside_a_run_is_a_note(tmp_path: Path) -> None:
    run = copied_run(tmp_path / "run", trust_remote_code=True)
    report = diagnose([run], allow_model=False)
    (found,) = [one for one in report.findings if one.code.startswith("remote-code")]
    assert (found.code, found.severity) == ("remote-code.named", "info")
    assert "trust_remote_code is “true”" in found.message
