"""The corpus: its halves, its judgements, the bugs known to be there, and the page about it."""

from hashlib import sha256

import pytest

from fixtures.lab.lint_corpus import corpus
from fixtures.lab.lint_corpus.__main__ import page

HIT = corpus.PackageHit(
    "tuner", "1.0", "tuner/train.py", 10, "non-strict-load", "warning", "names are skipped"
)


def judgement(line: int, rule: str = "non-strict-load") -> corpus.Judgement:
    return corpus.Judgement(
        "tuner", "1.0", "tuner/train.py", line, rule, "true", "nothing is compared"
    )


def test_a_package_is_in_the_half_that_its_name_says() -> None:
    every = [one for one in corpus.packages() if one.half != "earlier"]
    assert len({one.name for one in every}) == len(every) >= 40
    for one in every:
        is_odd = int(sha256(one.name.encode()).hexdigest(), 16) % 2
        assert one.half == ("test" if is_odd and not one.known else "dev"), one.name
        assert len(one.sha256) == 64


def test_every_judgement_is_of_a_package_in_its_version_and_gives_a_reason() -> None:
    versions = {(one.name, one.version) for one in corpus.packages()}
    places = set()
    for one in corpus.judgements():
        place = (one.package, one.version, one.file, one.line, one.rule)
        assert (one.package, one.version) in versions, place
        assert one.judgement in corpus.WORTHS, place
        assert one.why, place
        assert place not in places, place
        places.add(place)


def test_bugs_that_are_told_exist() -> None:
    bugs = {one.name: one for one in corpus.real_bugs()}
    for one in corpus.judgements():
        if one.bug is not None:
            assert (one.package, one.file) == (bugs[one.bug].package, bugs[one.bug].file)
            assert one.judgement == "true"


@pytest.mark.parametrize(
    ("away", "found"), [(0, True), (corpus.TOLERANCE, True), (corpus.TOLERANCE + 1, False)]
)
def test_a_hit_is_judged_by_the_nearest_line(away: int, found: bool) -> None:
    (one,) = corpus.judged([HIT], [judgement(10 + away), judgement(90)])
    assert (one.judgement is not None) == found


def test_a_hit_is_not_judged_by_another_rules_judgement() -> None:
    (one,) = corpus.judged([HIT], [judgement(10, "unguarded-mean")])
    assert one.judgement is None
    assert corpus.counts([one]) == {"warning non-strict-load": {"unjudged": 1}}


def test_every_planted_bug_has_a_twin() -> None:
    sources = corpus.planted_sources()
    assert len(sources) >= 25
    for name, halves in sources.items():
        assert halves[0] != halves[1], name
        for half in halves:
            compile(half, name, "exec")


def test_planted_bugs_are_found_and_their_twins_pass() -> None:
    every = list(corpus.planted(with_probe=False))
    assert not [one.name for one in every if not one.silent]
    # The probe finds most of the others.
    assert sum(bool(one.says) for one in every) >= 18


def test_the_page_is_made_of_what_is_kept() -> None:
    text = "\n".join(page())
    assert "## The test half, first look" in text
    assert f"| planted | {len(corpus.planted_sources())} |" in text
    assert all(f"`{one.file}:{one.line}`" in text for one in corpus.real_bugs())
