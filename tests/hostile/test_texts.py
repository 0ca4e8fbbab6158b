"""JSON, JSON lines and YAML that say more than a configuration may."""

import inspect
import json
from pathlib import Path

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.source import read_json_object
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import NAMES, ReadingLimits, current, using


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'{"iters": 1, "iters": 1}', {"iters": 1}),
        (b'\xef\xbb\xbf{"iters": 1}', {"iters": 1}),
        ('{"iters": 1}'.encode("utf-16"), {"iters": 1}),
        (b'{"model": "a\\ud800b"}', {"model": "a\ufffdb"}),
        (b'{"model": "\\ud83d\\ude00"}', {"model": "\U0001f600"}),
        (b'{"iters": 18446744073709551615}', {"iters": 2**64 - 1}),
        # What transformers writes for a tokenizer without a limit.
        (b'{"model_max_length": 1000000000000000019884624838656}', {"model_max_length": 1e30}),
        (b'{"a": 1e999}', {"a": float("inf")}),
    ],
)
def test_json_that_is_read(tmp_path: Path, content: bytes, value: object) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert read_json_object(tmp_path / "a.json")[0] == value


def test_a_configuration_of_nonsense_states_nothing(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        '{"iters": NaN, "batch_size": Infinity, "learning_rate": [], "num_layers": 1e400}'
    )
    config = TrainingConfig.read(tmp_path / "adapter_config.json")
    assert (config.iters, config.batch_size, config.num_layers) == (None, None, None)


def test_rows_that_no_tokenizer_takes_are_bad_lines(tmp_path: Path) -> None:
    rows = [
        b'{"text": "good"}',
        b'{"text": "half \\ud800 a pair"}',
        b'{"text": "whole \\ud83d\\ude00 pair"}',
        b'{"a": ' * 5000,
        b'{"text": ' + b"9" * 5000 + b"}",
        b"\xff\xfe{}",
        b'{"text": "\\ud800", "a": ' + b"[" * 400 + b"]" * 400 + b"}",
    ]
    (tmp_path / "train.jsonl").write_bytes(b"\r\n".join(rows))
    split = Dataset.read(tmp_path).splits["train"]
    assert split.line_numbers == (1, 3)
    assert [*split.bad_lines] == [2, 4, 5, 6, 7]


def test_answers_lose_half_pairs(tmp_path: Path) -> None:
    (tmp_path / "g.jsonl").write_text(json.dumps({"prompt": "a\ud800", "tuned": "b\udfff"}))
    (item,) = Generations.read(tmp_path / "g.jsonl").items
    assert (item.prompt, item.tuned) == ("a\ufffd", "b\ufffd")


def test_every_limit_says_its_unit_and_source() -> None:
    lines = inspect.getsource(ReadingLimits).splitlines()
    for name in NAMES:
        (line,) = (line for line in lines if line.startswith(f"    {name}: "))
        assert "  # " in line


def test_a_limit_is_raised_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLXDOCTOR_LIMITS", raising=False)
    with using(["text_bytes=2K"]):
        with using(["json_depth=7"]):
            assert (current().text_bytes, current().json_depth) == (2048, 7)
        assert current().json_depth == ReadingLimits().json_depth
    assert current() == ReadingLimits()


def test_the_environment_raises_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXDOCTOR_LIMITS", "text_bytes=1.5M, template_seconds=0.5")
    assert (current().text_bytes, current().template_seconds) == (3 << 19, 0.5)


@pytest.mark.parametrize("stated", ["nonsense=1", "text_bytes", "text_bytes=-1", "text_bytes=x"])
def test_a_limit_that_is_none(stated: str) -> None:
    with pytest.raises(InputError) as error, using([stated]):
        pass
    said = str(error.value)
    # An unknown one lists them all.
    is_unknown = "names no limit" in said and all(name in said for name in NAMES)
    assert is_unknown or "no positive number" in said
