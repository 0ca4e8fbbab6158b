import copy
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from mlxdoctor.formats import figures, markdown
from tests.formats import sample
from tests.formats.test_escape import HOSTILE

FIRST_SCREEN = 25
REPORTS = Path(__file__).parents[2] / "reports"


def rendered(data: dict[str, Any], paths: dict[str, str] | None = None) -> str:
    return markdown.render(sample.made(data), paths)


def captions(shown: dict[str, Any]) -> dict[str, str]:
    return figures.captions(sample.made(sample.unhealthy() | {"figures": shown}))


def headings(text: str) -> list[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [
        tokens[index + 1].content
        for index, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def test_the_first_screen_says_what_happened_what_to_change_as_a_diff() -> None:
    first = "\n".join(rendered(sample.unhealthy()).splitlines()[:FIRST_SCREEN])
    assert first.startswith("# Root cause: the learning rate is too high\n")
    assert "`llama-commas`" in first
    assert "The training loss rose from 2.148 to 10.97" in first
    assert "`learning_rate` from `0.0002` to `2e-05`" in first
    assert '+  "learning_rate": 2e-05,' in first


def test_the_sections_come_in_the_order_of_the_design() -> None:
    assert headings(rendered(sample.unhealthy())) == [
        "Root cause: the learning rate is too high",
        "What was examined",
        "Symptoms",
        "Evidence",
        "Differential diagnosis",
        "Why this does that",
        "Every cause",
        "Every check",
        "What could not be checked",
        "Appendix",
    ]


def test_the_page_of_a_failure_has_the_arithmetic_the_fix_and_every_check() -> None:
    text = rendered(sample.unhealthy())
    for part in (
        "| `learning-rate-too-high` | -1.00 | `loss-trend.diverged` +4.00 (found);",
        '```diff\n--- adapter_config.json\n+++ adapter_config.json\n-  "learning_rate"',
        "- passed: `adapter-presence`",
        "- skipped: `adapter-drift`: the base model",
        "- found: `loss-trend` (`loss-trend.diverged`)",
    ):
        assert part in text


def test_a_file_read_for_two_reasons_is_listed_once() -> None:
    data = sample.unhealthy()
    again = data["run"]["evidence"][1] | {"kind": "environment"}
    data["run"]["evidence"].append(again)
    text = rendered(data)
    assert "| `runs/llama-commas/train.log` | training log, environment |" in text
    assert text.count("`runs/llama-commas/train.log`") == 1


def test_pictures_are_linked_only_where_they_were_drawn() -> None:
    data = sample.unhealthy()
    assert "![" not in rendered(data)
    shown = rendered(data, {"loss": "figures/loss.png"})
    assert shown.count("![") == 1
    assert "](figures/loss.png)" in shown


def test_captions_say_in_words_what_the_pictures_show() -> None:
    described = captions(sample.unhealthy()["figures"])
    assert "lowest 2.148 at 5" in described["loss"]
    assert "goes wrong at iteration 10" in described["loss"]
    shown = copy.deepcopy(sample.unhealthy()["figures"])
    shown["loss"] |= {"train": {"iterations": [10], "values": [float("nan")]}, "val": None}
    assert "training loss NaN at iteration 10, last NaN" in captions(shown)["loss"]


def test_a_healthy_report_says_so_and_is_short() -> None:
    text = rendered(sample.healthy())
    assert text.startswith("# Healthy: the validation loss fell from 2.1 to 1.2\n")
    assert "Differential diagnosis" not in text
    assert len(shown(text)) < 0.6 * len(shown(rendered(sample.unhealthy())))


def shown(text: str) -> list[str]:
    """The lines that are not folded away."""
    return re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL).splitlines()


@pytest.mark.parametrize("page", sorted(REPORTS.glob("*/report.md")), ids=lambda p: p.parent.name)
def test_a_report_is_one_that_a_person_reads(page: Path) -> None:
    lines = shown(page.read_text())
    text = [line for line in lines if line and not line.startswith("|")]
    assert len(lines) <= 150
    assert len(text) <= 80


def test_an_inconclusive_report_says_what_to_provide() -> None:
    first = "\n".join(rendered(sample.inconclusive()).splitlines()[:FIRST_SCREEN])
    assert first.startswith("# Inconclusive")
    assert "not a clean bill of health" in first
    assert "name its folder with --base" in first
    assert "adapters/adapters.safetensors: is cut off" in first
    assert "1 of 2 known causes are ruled out; open: wrong base model" in first


def test_close_causes_are_only_probable_and_name_the_runner_up() -> None:
    data = sample.unhealthy()
    data["diagnosis"][1]["score"] = data["diagnosis"][0]["score"] - 1
    text = rendered(data)
    assert text.startswith("# Probable cause: the learning rate is too high\n")
    assert "*The LoRA scale is too large* comes close, with a score of 4.25 against 5.25" in text


def test_an_unexplained_failure_names_no_cause() -> None:
    data = sample.unhealthy() | {"diagnosis": [], "causes": {}, "fix": None}
    text = rendered(data)
    assert text.startswith("# Unhealthy, and no known cause explains it\n")
    assert "Differential diagnosis" not in text
    assert "**What to change" not in text


def test_without_a_configuration_key_the_fix_is_the_remedy() -> None:
    text = rendered(sample.unhealthy() | {"fix": None})
    assert "**What to change:**\nLower `learning_rate` tenfold" in text
    assert "```diff" not in text


def planted(value: Any, text: str) -> Any:
    """`value` with every text an artifact can influence replaced by `text`."""
    if isinstance(value, dict):
        fixed = {"severity", "status", "region", "check", "code", "fingerprint", "sha256", "cause"}
        return {key: item if key in fixed else planted(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [planted(item, text) for item in value]
    return text if isinstance(value, str) else value


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("kind", ["unhealthy", "healthy", "inconclusive"])
def test_hostile_artifacts_change_nothing_in_the_structure(text: str, kind: str) -> None:
    clean = getattr(sample, kind)()
    kept = {"causes", "tool", "verdict", "diagnosis", "schema_version"}
    hostile = {key: item if key in kept else planted(item, text) for key, item in clean.items()}
    assert structure(rendered(hostile)) == structure(
        rendered(
            {key: item if key in kept else planted(item, "word") for key, item in clean.items()}
        )
    )


def structure(text: str) -> list[str]:
    """Everything a renderer makes of the text but the text itself."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    blocks = [
        f"{token.type} {token.content if token.type == 'html_block' else ''}" for token in tokens
    ]
    ignored = {"text", "text_special", "code_inline", "softbreak"}
    inline = [
        child.type
        for token in tokens
        for child in token.children or []
        if child.type not in ignored
    ]
    return blocks + inline
