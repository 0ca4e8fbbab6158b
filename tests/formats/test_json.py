"""What is printed as JSON is strict, and as the schemas in docs/ say."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.formats.format import text_of
from mlxdoctor.preflight import preflight
from mlxdoctor.report import Report
from tests.conftest import ROOT, RUNS
from tests.formats import gated_runs, sample


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def written(report: Report) -> dict[str, Any]:
    return json.loads(text_of(report, "json"), parse_constant=refuse)  # type: ignore[no-any-return]


def refused(name: str, document: dict[str, Any]) -> list[str]:
    """What the schema has against a document."""
    schema = json.loads((ROOT / "docs" / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


@pytest.mark.parametrize(
    "report",
    [
        lambda: diagnose(RUNS / "collapse-frequent-token", allow_model=False),
        lambda: diagnose(RUNS / "healthy-ordinary", allow_model=False),
        lambda: diagnose(RUNS / "answers-empty", allow_model=False),
        lambda: preflight(RUNS / "healthy-ordinary" / "adapter_config.json"),
        lambda: sample.made(sample.unhealthy()),
        lambda: sample.made(sample.healthy()),
        lambda: sample.made(sample.inconclusive()),
    ],
    ids=["failed", "sound", "data", "plan", "every section", "healthy", "inconclusive"],
)
def test_a_report(report: Callable[[], Report]) -> None:
    assert refused("report", written(report())) == []


def test_a_gates_result() -> None:
    document = json.loads(text_of(gated_runs.result(), "json"))
    assert refused("gate", document) == []
    document["items"][0]["status"] = "fine"
    assert refused("gate", document) != []


def test_numbers_that_are_none_are_texts_that_can_be_read_back() -> None:
    data = sample.unhealthy()
    measured = {"a": float("nan"), "b": float("inf"), "c": (float("-inf"), 1.5)}
    data["outcomes"][0]["findings"][0]["measured"] = measured
    found = written(sample.made(data))["outcomes"][0]["findings"][0]["measured"]
    assert found == {"a": "NaN", "b": "Infinity", "c": ["-Infinity", 1.5]}
    assert str(float(found["a"])) == "nan"


def test_lone_surrogates_and_control_characters_survive() -> None:
    report = sample.made(sample.unhealthy() | {"name": "a\ud800\x1b\u202e"})
    assert text_of(report, "json").isascii()
    assert written(report)["name"] == "a\ud800\x1b\u202e"
