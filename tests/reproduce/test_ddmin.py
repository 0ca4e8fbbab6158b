"""Delta debugging, on sets whose answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxdoctor.reproduce.minimize import ddmin

ITEMS = tuple(range(12))


@pytest.mark.parametrize("culprits", [{0}, {11}, {5}, {2, 3}, {0, 11}, {1, 6, 10}, set(ITEMS)])
def test_exactly_the_culprits_are_left(culprits: set[int]) -> None:
    assert ddmin(ITEMS, lambda part: culprits <= set(part)) == tuple(sorted(culprits))


def test_of_two_culprits_that_each_suffice_one_is_left() -> None:
    assert len(ddmin(ITEMS, lambda part: bool({3, 9} & set(part)))) == 1


def test_one_item_is_minimal_and_nothing_is_asked() -> None:
    def never(part: tuple[str, ...]) -> bool:
        raise AssertionError(part)

    assert ddmin(("only",), never) == ("only",)


def test_one_culprit_of_many_takes_a_few_questions() -> None:
    asked: set[tuple[int, ...]] = set()

    def fails(part: tuple[int, ...]) -> bool:
        asked.add(part)
        return 13 in part

    assert ddmin(tuple(range(64)), fails) == (13,)
    assert len(asked) <= 2 * 6


@pytest.mark.slow
@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.frozensets(st.integers(0, 9))))
def test_the_result_fails_and_no_smaller_by_one_does(
    culprits: set[int], also: set[frozenset[int]]
) -> None:
    def fails(part: tuple[int, ...]) -> bool:
        # Parts of `also` can't be told: they count as no, whatever they hold.
        return culprits <= set(part) and (len(part) == 10 or frozenset(part) not in also)

    found = ddmin(tuple(range(10)), fails)
    assert fails(found)
    assert not any(fails(tuple(x for x in found if x != one)) for one in found)
