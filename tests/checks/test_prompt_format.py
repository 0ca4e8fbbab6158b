"""Answers learned in the rows' own format, from losses made to order."""

from __future__ import annotations

import numpy as np
import pytest

from mlxdoctor.finding import Finding
from mlxdoctor.measure.written_exchanges import WrittenExchanges
from tests.conftest import check_called
from tests.given import findings, outcome

prompt_format = check_called("prompt-format")
CODE = "prompt-format.learned-in-another-format"
LESS = "prompt-format.learned-less-in-the-template"


def exchanges(
    base: tuple[float, float], tuned: tuple[float, float], rows: int = 16
) -> WrittenExchanges:
    """Mean losses as written and in the template, the rows a little apart."""
    noise = np.linspace(-0.05, 0.05, rows).tolist()

    def pairs(means: tuple[float, float]) -> tuple[tuple[float, float], ...]:
        return tuple((means[0] + one, means[1] + 2 * one) for one in noise)

    marks = ("### Instruction:", "### Response:")
    return WrittenExchanges((), marks, pairs(base), pairs(tuned))


def found(one: WrittenExchanges) -> dict[str, Finding]:
    return findings(prompt_format, one)


def test_learned_in_the_rows_form_only() -> None:
    one = found(exchanges((3.0, 2.8), (1.5, 2.6)))[CODE]
    assert one.severity == "error"
    assert one.measured["tuned_in_template"] == pytest.approx(2.6)
    assert '"### Response:"' in one.message or "### Response:" in one.message


@pytest.mark.parametrize(("template", "hit"), [(2.1, True), (2.0, False)])
def test_half_of_it_is_lost(template: float, hit: bool) -> None:
    # 1.5 nats were learned as written: 0.75 in the template are half of that.
    assert list(found(exchanges((3.0, 2.8), (1.5, template)))) == [CODE if hit else LESS]


@pytest.mark.parametrize(
    ("template", "severity"), [(1.65, "error"), (1.55, "warning"), (1.5, None)]
)
def test_a_part_of_it_is_lost(template: float, severity: str | None) -> None:
    # 85% of 1.5 nats are 1.275; 0.3 nats less are 1.2.
    codes = found(exchanges((3.0, 2.8), (1.5, template)))
    assert {code: one.severity for code, one in codes.items()} == (
        {LESS: severity} if severity else {}
    )


def test_where_the_template_is_no_worse_it_is_a_warning() -> None:
    one = found(exchanges((3.0, 1.9), (1.5, 1.7)))[CODE]
    assert one.severity == "warning"


def test_a_run_that_learned_both_passes() -> None:
    said = outcome(prompt_format, exchanges((3.0, 2.8), (1.5, 1.5)))
    assert said.status == "passed"
    assert said.seen[0].measured["rows"] == 16


def test_nothing_learned_is_another_fault() -> None:
    assert found(exchanges((3.0, 2.8), (2.9, 2.8))) == {}


def test_few_rows_decide_nothing() -> None:
    assert outcome(prompt_format, exchanges((3.0, 2.8), (1.5, 2.6), 6)).status == "inconclusive"
