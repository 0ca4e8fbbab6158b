"""Files, suppressions and formats."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.check import discover
from mlxdoctor.lint import hit_formats
from mlxdoctor.lint import rules as lint_rules
from mlxdoctor.lint.linter import lint, lint_source
from mlxdoctor.lint.rule import Hits, rules
from mlxdoctor.lint.source import SourceFile
from tests.conftest import Call, example_of

BAD = (
    "import mlx.core as mx\ndef loss(losses, mask):\n"
    "    return (losses * mask).sum() / mask.sum(){comment}\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(BAD.format(comment=""))
    return path


def codes(comment: str) -> list[str]:
    source = SourceFile.parse(BAD.format(comment=comment), Path("train.py"))
    return [hit.code for hit in lint_source(source)]


def test_places(file: Path) -> None:
    (hit,) = lint([file])
    assert (hit.line, hit.column, hit.end_line) == (3, 12, 3)
    assert hit.text == "return (losses * mask).sum() / mask.sum()"


def test_suppression() -> None:
    assert codes("") == ["unguarded-mean"]
    assert codes("  # mlxdoctor: ignore[unguarded-mean] rows are never empty") == []
    assert codes("  # mlxdoctor: ignore[unguarded-mean]") == ["ignore-without-reason"]
    assert codes("  # mlxdoctor: ignore[adapter-flag] wrong rule") == [
        "unguarded-mean",
        "unused-ignore",
    ]
    assert codes("  # mlxdoctor: ignore[unguarded-mean, adapter-flag] two") == ["unused-ignore"]
    above = "    # mlxdoctor: ignore[unguarded-mean] said above\n"
    *first, last = BAD.format(comment="").splitlines(keepends=True)
    source = SourceFile.parse("".join([*first, above, last]), Path("train.py"))
    assert lint_source(source) == []
    assert codes("  # an ordinary comment") == ["unguarded-mean"]
    assert codes('\ns = "# mlxdoctor: ignore[unguarded-mean] no"') == ["unguarded-mean"]


def test_folders_are_searched_and_hidden_ones_left_out(file: Path) -> None:
    folder = file.parent
    for name in (".venv", "site-packages"):
        (folder / name).mkdir()
        (folder / name / "other.py").write_text(file.read_text())
    (folder / "empty.py").touch()
    assert [hit.path for hit in lint([folder])] == [file]


def test_a_file_that_is_not_python_does_not_stop_the_rest(file: Path) -> None:
    (file.parent / "a.py").write_text("import mlx\ndef broken(: load_weights(x, False)\n")
    (file.parent / "b.py").write_bytes(b"import mlx\x00\xff\xfe")
    found = [(hit.path.name, hit.code) for hit in lint([file.parent])]
    assert found == [
        ("a.py", "unreadable"),
        ("b.py", "unreadable"),
        ("train.py", "unguarded-mean"),
    ]


def test_exit_codes(file: Path, call: Call) -> None:
    code, printed, _ = call("lint", file)
    assert (code, f"{file}:3:12: warning [unguarded-mean]" in printed) == (1, True)
    assert call("lint", file, "--fail-on", "error")[0] == 0
    code, listed, _ = call("lint", "--rules")
    assert code == 0
    assert all(one.code in listed for one in rules())


def test_github_annotations_cannot_be_forged(tmp_path: Path) -> None:
    path = tmp_path / "a,b:c%.py"
    path.write_text(BAD.format(comment=""))
    line = hit_formats.github(lint([path]))
    assert line.startswith("::warning file=")
    assert "a%2Cb%3Ac%25.py,line=3" in line
    assert line.count("\n") == 1


RULE = f'''"""Saves."""

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

{example_of("@rule")}'''


def test_one_file_adds_a_rule(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    # The check of trainers has a code for each rule that is there when it is imported.
    discover()
    folder = tmp_path / "more_rules"
    folder.mkdir()
    (folder / "saves.py").write_text(RULE)
    monkeypatch.setattr(lint_rules, "__path__", [*lint_rules.__path__, str(folder)])
    rules.cache_clear()
    try:
        file.write_text("import mlx.nn\nmodel.save_weights('a')\ntrain(model)\n")
        assert [hit.code for hit in lint([file])] == ["saved-too-early"]
        for arguments, said in (
            (["lint", file], "train.py:2:1: warning [saved-too-early] saved before it"),
            (["lint", "--rules"], "A model that is saved before it was trained."),
            (["explain", "saved-too-early"], "Silence it with"),
            (["explain", "saved-too-early"], "Instead of"),
            (["explain", "saved-too-early"], "train(model)"),
        ):
            assert said in call(*arguments)[1]
        document = json.loads(hit_formats.sarif(lint([file])))
        assert document["runs"][0]["results"][0]["ruleId"] == "saved-too-early"
    finally:
        rules.cache_clear()


def test_every_format_has_its_option(file: Path, call: Call) -> None:
    for name, write in hit_formats.FORMATS.items():
        assert call("lint", file, "--stdout", name)[:2] == (1, write(lint([file])))
    (row,) = json.loads(hit_formats.to_json(lint([file])))
    assert (row["code"], row["line"]) == ("unguarded-mean", 3)


def test_files_without_mlx_are_left_alone(tmp_path: Path) -> None:
    fault = BAD.format(comment="").partition("\n")[2]
    (tmp_path / "torch.py").write_text(f"import torch\n{fault}")
    (tmp_path / "two.py").write_text("print 'Python 2'\n")
    (tmp_path / "words.py").write_text(f"# not mlx\nimport numpy\n{fault}")
    (tmp_path / "parts.py").write_text(f"from .util import mean  # made with mlx\n{fault}")
    (tmp_path / "late.py").write_text(f"def setup():\n    import mlx.core as mx\n{fault}")
    (tmp_path / "lora.py").write_text(f"from mlx_lm_lora.trainer import train\n{fault}")
    (tmp_path / "os.py").write_text(f"import os, mlx.core as mx\n{fault}")
    assert [hit.path.name for hit in lint([tmp_path])] == ["late.py", "lora.py", "os.py"]


def test_a_notebook_is_told_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text('{"cells": [], "metadata": {}}')
    (hit,) = lint([path])
    assert hit.code == "unreadable"
    assert hit.message.startswith("is a notebook: the file was not examined (make a script of it")


@pytest.mark.parametrize("text", ["-" * 2_000 + "y", "f" + ".a" * 2_000, "a + " * 2_000 + "b"])
def test_deep_nesting_is_one_sentence(text: str, file: Path) -> None:
    file.write_text(f"import mlx.core as mx\nfor x in y:\n    ({text}).update(model, grads)\n")
    (hit,) = lint([file])
    assert hit.code == "unreadable"
    assert "the file was not examined" in hit.message


@pytest.mark.parametrize(
    "line",
    ["x = x + y\n", "if x:\n    x = f(x)\n", "model(x)\n", "losses.sum() / mask.sum()\n"],
)
def test_long_sources_take_no_long_time(line: str, file: Path) -> None:
    file.write_text("import mlx.core as mx\nfrom m import *\n" + line * 8_000)
    begun = time.process_time()
    lint([file])
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("line", [f"from {'.' * 100_000} import x", "x = 1or 2"], ids=len)
def test_an_import_from_far_up_and_a_literal_that_python_warns_of(
    line: str, file: Path, recwarn: pytest.WarningsRecorder
) -> None:
    file.write_text(f"import mlx.core as mx\n{line}\n")
    assert lint([file]) == []
    assert not recwarn.list


def test_a_rule_that_raises_is_named_and_the_others_are_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: SourceFile) -> Hits:
        yield source.tree, "before it fails"
        raise KeyError("no such call")

    broken = replace(rules()[0], code="broken", find=fail)
    monkeypatch.setattr("mlxdoctor.lint.linter.rules", lambda: (broken, *rules()))
    hits = {hit.code: hit.message for hit in lint([file])}
    assert set(hits) == {"broken", "unreadable", "unguarded-mean"}
    assert hits["unreadable"].startswith("the rule broken failed on this file (KeyError: ")
    (file.parent / "train.log").write_text("Iter 10: Train loss 2.0, It/sec 1.0\n")
    outcomes = {one.check: one for one in diagnose(file.parent).outcomes}
    assert "the rule broken failed" in outcomes["trainer-source"].reason
    assert outcomes["trainer-source"].findings[0].code == "trainer-source.unguarded-mean"
