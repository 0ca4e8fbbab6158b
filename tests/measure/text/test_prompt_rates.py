"""When a rate over prompts is a broken model's."""

import pytest

from mlxdoctor.measure.text.prompt_rates import AGAINST_BASE, is_raised, rate, too_few
from mlxdoctor.template import fill


def hits(count: int, total: int) -> list[bool]:
    return [True] * count + [False] * (total - count)


def test_three_hits_of_three_decide_and_two_do_not() -> None:
    assert rate(hits(3, 3), hits(0, 3)).is_broken
    assert not rate(hits(2, 2), hits(0, 2)).is_broken


def test_without_the_base_model_the_sequential_test_decides() -> None:
    assert rate(hits(3, 3), None).is_broken
    assert not rate(hits(3, 6), None).is_broken
    assert rate(hits(3, 6), None).p_value is None


def test_a_base_model_that_does_the_same_clears_the_adapter() -> None:
    found = rate(hits(16, 16), hits(16, 16))
    assert not found.is_broken
    assert not is_raised(found)


@pytest.mark.parametrize(("base", "broken"), [(3, True), (4, False)])
def test_a_fifth_of_the_base_answers_is_too_many(base: int, broken: bool) -> None:
    assert rate(hits(20, 20), hits(base, 20)).is_broken is broken


@pytest.mark.parametrize(("tuned", "broken"), [(10, True), (9, False)])
def test_half_of_the_prompts_is_enough(tuned: int, broken: bool) -> None:
    found = rate(hits(tuned, 20), hits(0, 20))
    assert found.is_broken is broken
    assert is_raised(found)


def test_the_order_of_prompts_does_not_matter() -> None:
    tuned = hits(6, 10)
    assert rate(tuned, None).decided == rate(tuned[::-1], None).decided


def test_figures_and_words() -> None:
    found = rate(hits(4, 8), hits(1, 8))
    assert found.measured["tuned_share"] == 0.5
    assert found.measured["base_hits"] == 1
    assert fill(AGAINST_BASE, found.measured) == "the base model does so on 1 of them"
    assert "no answer of the base" in fill(AGAINST_BASE, rate(hits(4, 8), None).measured)


def test_no_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="one entry a prompt"):
        rate([], None)


def test_eight_prompts_without_a_hit_rule_a_broken_model_out() -> None:
    assert too_few(8) is None
    assert "7 answers are too few" in (too_few(7) or "")
    assert "1 answer is too few" in (too_few(1) or "")
