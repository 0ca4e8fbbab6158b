import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.run import Run
from tests.conftest import RUNS, check_called, expected, run_names
from tests.given import severities

CHECKS = [check_called(name) for name in ("token-collapse", "generation-effect", "base-answers")]
WORSE = {"worse-than-base": "error"}
#: Run -> what the first two checks find; nothing of the others.
FOUND: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "adapter-never-attached": ({"single-token": "error"}, WORSE),
    "adapter-not-loaded": ({}, {"identical-to-base": "error"}),
    "answers-empty": ({"empty-answers": "error"}, WORSE),
    "b-never-trained": ({}, {"identical-to-base": "warning"}),
    "collapse-frequent-token": ({"single-token": "error"}, WORSE),
    "end-token-flood": ({"empty-answers": "error"}, WORSE),
    "gradients-blocked": ({}, {"identical-to-base": "warning"}),
    "labels-double-shift": ({"skips-tokens": "error"}, {}),
    "missing-end-token": ({"never-ends": "error"}, {}),
    "no-supervised-tokens": ({"token-zero": "error"}, WORSE),
    "rate-far-too-high-nan": ({"token-zero": "error"}, WORSE),
    "rate-too-low": ({}, {"identical-to-base": "error"}),
    "scale-too-large": ({}, WORSE),
    "targets-too-long": ({"single-token": "error"}, WORSE),
}


@pytest.mark.parametrize("name", run_names())
def test_what_the_recorded_answers_of_a_run_show(name: str) -> None:
    outcomes = run_checks(CHECKS, Run.discover([RUNS / name], allow_model=False))
    collapse, effect, base = outcomes
    if not (RUNS / name / "generations.jsonl").exists():
        assert {one.status for one in outcomes} == {"skipped"}
        return
    assert (severities(collapse), severities(effect)) == FOUND.get(name, ({}, {}))
    assert severities(base) == {"sound": "info"}
    if expected(name)["verdict"] == "healthy":
        assert [seen.learned for seen in effect.seen] == [True]
    # Answers of one token have too few pairs for skips; the others are judged.
    is_collapsed = bool(severities(collapse).keys() - {"skips-tokens", "never-ends"})
    assert ("token-collapse.skips-tokens" in collapse.unsought) is is_collapsed
    if name == "collapse-frequent-token":
        assert collapse.findings[0].measured["token"] == 11
    if name == "labels-double-shift":
        measured = collapse.findings[0].measured
        assert measured["distance"] == 2
        assert measured["share"] > 0.5
        assert measured["adjacent_share"] < 0.2
