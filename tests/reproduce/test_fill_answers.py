"""Empty answers filled in: which cause that shows, and when it is tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mlxdoctor.causes import load_causes
from mlxdoctor.experiments.fill_answers import fill_answers

CAUSES = load_causes().causes


def test_it_shows_that_the_rows_are_at_fault() -> None:
    assert [one.id for one in CAUSES.values() if fill_answers.shows(one)] == ["bad-data"]


@pytest.mark.parametrize(
    "codes",
    [
        [],
        ["data-quality.duplicates"],
        # As many rows are named for another reason: leaving them out tells more.
        ["data-format.many-empty-answers", "data-quality.duplicates"],
    ],
)
def test_it_is_left_to_others_where_other_rows_are_named(codes: list[str]) -> None:
    outcome = SimpleNamespace(findings=[SimpleNamespace(code=one) for one in codes])
    bench = SimpleNamespace(failure=SimpleNamespace(outcomes=[outcome]))
    nothing = cast("Any", None)
    assert fill_answers.make(cast("Any", bench), CAUSES["bad-data"], nothing, {}) is None
