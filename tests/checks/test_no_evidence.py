import pytest

from mlxdoctor.check import discover
from tests.conftest import check_called
from tests.given import outcome

#: It looks for traces in whatever there is.
UNDECIDED = {"known-bugs": "inconclusive"}
#: What they miss is no single kind of evidence.
OWN_WORDS = {"known-bugs", "preferences", "quantization-consistency"}


@pytest.mark.parametrize("name", [one.name for one in discover()])
def test_where_nothing_is_given_a_check_says_so_and_finds_nothing(name: str) -> None:
    found = outcome(check_called(name))
    assert found.status == UNDECIDED.get(name, "skipped")
    assert found.reason
    assert found.reason.startswith("no ") != (name in OWN_WORDS)
    assert not found.findings
