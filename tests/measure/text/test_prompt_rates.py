import pytest

from mlxdoctor.measure.text.statistics import AGAINST_BASE, is_raised, rate, too_few
from mlxdoctor.template import fill


def hits(count: int, total: int) -> list[bool]:
    return [True] * count + [False] * (total - count)


@pytest.mark.parametrize(
    ("tuned", "base", "prompts", "broken", "raised"),
    [
        (3, 0, 3, True, True),
        (2, 0, 2, False, False),
        # Without the base model the sequential test decides.
        (3, None, 3, True, True),
        (3, None, 6, False, False),
        # A base model that does the same clears the adapter; a fifth of its answers is too many.
        (16, 16, 16, False, False),
        (20, 3, 20, True, True),
        (20, 4, 20, False, True),
        # Half of the prompts is enough.
        (10, 0, 20, True, True),
        (9, 0, 20, False, True),
    ],
)
def test_when_a_rate_is_a_broken_models(
    *, tuned: int, base: int | None, prompts: int, broken: bool, raised: bool
) -> None:
    of_base = hits(base, prompts) if base is not None else None
    found = rate(hits(tuned, prompts), of_base)
    assert (found.is_broken, is_raised(found)) == (broken, raised)
    assert (found.p_value is None) is (base is None)
    # The order of prompts does not matter.
    assert found.decided == rate(hits(tuned, prompts)[::-1], of_base).decided


def test_figures_and_words() -> None:
    found = rate(hits(4, 8), hits(1, 8))
    assert found.measured["tuned_share"] == 0.5
    assert found.measured["base_hits"] == 1
    assert fill(AGAINST_BASE, found.measured) == "the base model does so on 1 of them"
    assert "no answer of the base" in fill(AGAINST_BASE, rate(hits(4, 8), None).measured)


def test_eight_prompts_without_a_hit_rule_a_broken_model_out() -> None:
    assert too_few(8) is None
    assert "7 answers are too few" in (too_few(7) or "")
    assert "1 answer is too few" in (too_few(1) or "")
