"""Reported logs by themselves: each is judged as the table says, and the page shows the table."""

import pytest

from fixtures.lab.cases.__main__ import PAGE
from fixtures.lab.cases.logged import LOGS as TOLD
from fixtures.lab.cases.logged import Logged, section
from mlxdoctor.api import diagnose
from tests.conftest import LOGS


@pytest.mark.parametrize("one", TOLD, ids=lambda one: one.name)
def test_a_log_is_judged_as_the_table_says(one: Logged) -> None:
    report = diagnose([LOGS / f"{one.name}.log"], allow_model=False)
    first = report.root or report.suspected
    assert (report.verdict.value, first.cause.id if first else None) == (one.verdict, one.cause)
    # What is not said as labelled has its reason, and no sound run is called anything else.
    is_right = one.label == (one.cause or "sound") and one.verdict != "inconclusive"
    assert is_right != bool(one.why)
    assert one.label != "sound" or one.verdict in ("healthy", "inconclusive")


def test_the_page_shows_the_table() -> None:
    assert section() in PAGE.read_text()
