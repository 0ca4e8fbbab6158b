"""Sentences that are filled from figures."""

import pytest

from mlxdoctor.template import UnmeasuredError, fill, names_in


@pytest.mark.parametrize(
    ("template", "values", "sentence"),
    [
        ("The loss ends at {end:.3f}.", {"end": 9.98}, "The loss ends at 9.980."),
        ("{rows:* row}", {"rows": 1}, "1 row"),
        ("{rows:* row}", {"rows": 1234}, "1,234 rows"),
        ("{n:* entry/entries}", {"n": 2}, "2 entries"),
        ("layers {layers}", {"layers": (3, 4)}, "layers 3, 4"),
        ("It ends[ at {end:.1f}].", {"end": 2.0}, "It ends at 2.0."),
        ("It ends[ at {end:.1f}].", {"end": None}, "It ends."),
        ("It ends[ at {end:.1f}].", {}, "It ends."),
        ("[{share:.0%} of|some of] the rows", {"share": 0.25}, "25% of the rows"),
        ("[{share:.0%} of|some of] the rows", {}, "some of the rows"),
        ("[{a}|{b}]", {"a": None, "b": None}, ""),
        ("layers[[0]] is {{x}}", {}, "layers[0] is {x}"),
        ("it says {text}", {"text": "“[a|b] {c}”"}, "it says “[a|b] {c}”"),
        ("zero is a figure: [{count}]", {"count": 0}, "zero is a figure: 0"),
    ],
)
def test_templates(template: str, values: dict[str, object], sentence: str) -> None:
    assert fill(template, values) == sentence


def test_a_value_that_was_not_measured_is_an_error_outside_of_brackets() -> None:
    with pytest.raises(UnmeasuredError):
        fill("The loss ends at {end:.3f}.", {"end": None})


@pytest.mark.parametrize("template", ["open [bracket", "closed] bracket", "{open"])
def test_malformed_templates_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"bracket|expected"):
        fill(template, {})


def test_the_names_that_a_template_shows() -> None:
    assert names_in("{a} [{b:.2f}|none of {c:* row}]") == {"a", "b", "c"}
