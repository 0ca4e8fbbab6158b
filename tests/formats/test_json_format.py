from __future__ import annotations

import json
from typing import Any

from mlxdoctor.formats.format import text_of
from tests.formats import sample


def written(data: dict[str, Any]) -> str:
    return text_of(sample.made(data), "json")


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def test_it_is_strict_json_with_the_contracts_keys() -> None:
    data = json.loads(written(sample.unhealthy()), parse_constant=refuse)
    assert list(data)[:1] == ["schema_version"]
    assert data["schema_version"] == 3
    assert data["verdict"] == "unhealthy"
    assert {"tool", "run", "diagnosis", "outcomes", "experiments"} <= data.keys()
    assert data["diagnosis"][0]["cause"] == "learning-rate-too-high"


def test_numbers_that_are_none_are_texts_that_can_be_read_back() -> None:
    data = sample.unhealthy()
    measured = {"a": float("nan"), "b": float("inf"), "c": (float("-inf"), 1.5)}
    data["outcomes"][0]["findings"][0]["measured"] = measured
    found = json.loads(written(data))["outcomes"][0]["findings"][0]["measured"]
    assert found == {"a": "NaN", "b": "Infinity", "c": ["-Infinity", 1.5]}
    assert str(float(found["a"])) == "nan"


def test_lone_surrogates_and_control_characters_survive() -> None:
    data = sample.unhealthy() | {"name": "a\ud800\x1b\u202e"}
    text = written(data)
    assert text.isascii()
    assert json.loads(text)["name"] == "a\ud800\x1b\u202e"
