"""What is printed as JSON is as the schemas in docs/ say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.formats.format import text_of
from mlxdoctor.preflight import preflight
from tests.conftest import RUNS
from tests.formats import gated_runs, sample

DOCS = Path(__file__).parents[2] / "docs"


def refused(name: str, document: dict[str, Any]) -> list[str]:
    """What the schema has against a document."""
    schema = json.loads((DOCS / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


@pytest.mark.parametrize("run", ["collapse-frequent-token", "healthy-ordinary", "answers-empty"])
def test_a_report_of_a_run(run: str) -> None:
    report = diagnose(RUNS / run, allow_model=False)
    assert refused("report", json.loads(text_of(report, "json"))) == []


def test_a_report_of_a_plan() -> None:
    report = preflight(RUNS / "healthy-ordinary" / "adapter_config.json")
    assert refused("report", json.loads(text_of(report, "json"))) == []


@pytest.mark.parametrize("kind", ["unhealthy", "healthy", "inconclusive"])
def test_a_report_with_every_section(kind: str) -> None:
    report = sample.made(getattr(sample, kind)())
    assert refused("report", json.loads(text_of(report, "json"))) == []


def test_a_gates_result() -> None:
    document = json.loads(text_of(gated_runs.result(), "json"))
    assert refused("gate", document) == []
    document["items"][0]["status"] = "fine"
    assert refused("gate", document) != []
