"""What the tests of the code hosts' formats share."""

import pytest

from tests.conftest import ROOT


@pytest.fixture
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is the checkout, and no CI job names another."""
    monkeypatch.chdir(ROOT)
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
