import re
from typing import Any

import pytest

from mlxdoctor.formats import terminal
from tests.formats import sample
from tests.formats.test_escape import HOSTILE


def shown(data: dict[str, Any], **options: Any) -> str:
    return terminal.render(sample.made(data), **options)


def test_the_verdict_fits_on_a_screen_and_says_everything_needed() -> None:
    text = shown(sample.unhealthy(), written=["reports/llama-commas/report.md"])
    assert text.startswith("llama-commas: Root cause: the learning rate is too high\n")
    assert "The training loss rose from 2.148 to 10.97" in text
    assert "learning_rate: 0.0002 -> 2e-05" in text
    assert "reports/llama-commas/report.md" in text
    assert len(text.splitlines()) <= 15


@pytest.mark.parametrize(
    ("kind", "colour"), [("unhealthy", "red"), ("healthy", "green"), ("inconclusive", "yellow")]
)
def test_a_verdict_has_its_colour_from_the_style_that_is_passed(kind: str, colour: str) -> None:
    seen = []

    def style(text: str, colour: str | None, bold: bool) -> str:
        seen.append((colour, bold))
        return f"<{text}>"

    data = getattr(sample, kind)()
    text = shown(data, style=style)
    assert seen[0] == (colour, True)
    assert text.startswith(f"<{data['name']}: ")
    assert ("What to change" in text) is (kind == "unhealthy")
    assert "\x1b" not in shown(data)


def test_an_inconclusive_verdict_says_what_would_provide_the_evidence() -> None:
    lines = " ".join(shown(sample.inconclusive()).split())
    assert "Most useful next: the base model 'mlx-community/Llama' is not on this machine" in lines
    assert "machine; name its folder with --base. That would settle 2 of the open" in lines
    assert "adapter-presence crashed" in lines


def tried(cause: str, verdict: str, reason: str = "for a reason") -> dict[str, Any]:
    """The verdict on a cause, as the report lists it."""
    title = f"The title of {cause}"
    named = {"cause": cause, "title": title, "reason": reason}
    return {"experiment": "verdict", "verdict": verdict, **named}


def printed(*experiments: dict[str, Any], width: int = 80) -> str:
    return shown({**sample.unhealthy(), "experiments": experiments}, width=width)


def test_the_verdicts_are_listed_with_what_they_cost() -> None:
    lines = printed(tried("a", "confirmed"), tried("b", "refuted"), sample.rerun()).splitlines()
    place = lines.index("  confirmed: The title of a (a), for a reason.")
    assert lines[place + 1] == "  refuted: The title of b (b), for a reason."
    assert lines[place + 2] == "  1 experiment: 50 iterations, 2.5 seconds."
    assert "experiment" not in printed()


def test_a_cause_that_experiments_refuted_is_not_named() -> None:
    data = sample.unhealthy()
    data["diagnosis"] = [{**one, "confirmation": "refuted"} for one in data["diagnosis"]]
    text = shown({**data, "experiments": [tried("a", "refuted")]})
    assert "Unhealthy, and no known cause explains it" in text.splitlines()[0]
    assert "No cause could be confirmed." in text
    assert "What to change" not in text


@pytest.mark.parametrize("width", [40, 80, 300])
def test_lines_fit_the_terminal_and_cannot_steer_it(width: int) -> None:
    said = " ".join(["a long text goes on", "\x1b[31m\u202e\u2066\x00\x85", *HOSTILE]) * 3
    data = {**sample.unhealthy(), "name": said, "experiments": [tried("a", "refuted", said)]}
    data["outcomes"][0]["findings"][0]["message"] = said
    data["run"]["missing"][0] |= {"kind": said, "why": said}
    text = shown(data, width=width, written=["\x1b[31m\u202e"])
    assert max(map(len, text.splitlines())) <= min(width, terminal.MAX_WIDTH)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
