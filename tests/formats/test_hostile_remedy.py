"""What to do, said with words of a run in it: never live, and not said under `--no-text`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.formats import summary
from mlxdoctor.formats.format import text_of
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.report import Report
from mlxdoctor.safety.quoting import quoted
from tests.formats import sample
from tests.formats.page import live_in_markdown, live_in_page
from tests.formats.test_hostile_run import WORD
from tests.formats.test_no_text import rendered

HOSTILE = (
    f"# {WORD}",
    f"[{WORD}](http://e.example)",
    f"![{WORD}](http://e.example/p.png)",
    f"<img src=x onerror=alert('{WORD}')>",
    f"<script>{WORD}</script>",
    f"`{WORD}` ``` **{WORD}** | {WORD} |",
    f"\n\n# {WORD}\n\n- {WORD}\n\n<details>\n\n```\n{WORD}",
    f"http://{WORD}.example www.{WORD}.example @{WORD}",
    f"{{{{ 7 * 7 }}}} {WORD} {{% raw %}}",
)
#: As the trainer's own traceback has it, where rows lack what the first has.
LACKING = """Loading datasets
Training
Traceback (most recent call last):
  File "/lib/mlx_lm/tuner/trainer.py", line 220, in train
    for it, batch in zip(
  File "/lib/mlx_lm/tuner/datasets.py", line 31, in process
    return (self.tokenizer.encode(d[self.text_key]), 0)
KeyError: '{key}'
"""


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    # What to do is in none of them, and drawing them is what takes the time.
    monkeypatch.setattr("mlxdoctor.formats.figures.draw", lambda *_: {})


def is_inert(report: Report) -> None:
    """No text of the run does anything in Markdown or HTML."""
    assert live_in_page(text_of(report, "html"), WORD) == []
    assert live_in_markdown(text_of(report, "markdown"), WORD) == []
    assert "49" not in summary.remedy(report)


def told(fix: str) -> Report:
    """A report whose first cause leaves it to its finding to say what to do."""
    data = sample.unhealthy()
    cause = data["causes"]["learning-rate-too-high"]
    cause |= {"finding_says": True, "weights": dict.fromkeys(data["diagnosis"][0]["supporting"], 1)}
    for outcome in data["outcomes"]:
        for finding in outcome["findings"]:
            finding["fix"] = fix
    return sample.made(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_finding_says_to_do_is_never_live(text: str) -> None:
    # By the marks of a quotation, as checks write it, and by an oversight without them.
    for fix in (f"rename {quoted(text)} -> prompt", text):
        report = told(fix)
        assert WORD in summary.remedy(report)
        is_inert(report)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_finding_quotes_in_saying_what_to_do_is_withheld(text: str) -> None:
    report = told(f"rename {quoted(text)} -> prompt")
    assert all(WORD in "".join(one) for name, one in rendered(report).items() if name != "github")
    shown = rendered(without_text(report, []))
    assert [name for name, one in shown.items() if WORD in "".join(one)] == []
    assert "rename “(withheld)” -\\> prompt" in shown["markdown"][0].replace("->", "-\\>")


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A run that ended over its rows, whose keys are hostile, in a log that names one."""
    rows = [{text: text, "answer": WORD, "question": text} for text in HOSTILE]
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "valid"):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    run = tmp_path / "run"
    run.mkdir()
    config = {"model": "m", "data": str(data), "fine_tune_type": "lora", "batch_size": 1}
    (run / "adapter_config.json").write_text(json.dumps(config))
    (run / "train.log").write_text(LACKING.replace("{key}", WORD))
    return run


def test_keys_of_rows_are_never_live(refused: Path) -> None:
    report = diagnose([refused], allow_model=False)
    found = {one.code: one for outcome in report.outcomes for one in outcome.findings}
    assert WORD in found["data-format.unknown-format"].message
    assert WORD in found["log-failures.rows-refused"].fix
    is_inert(report)


def test_keys_of_rows_are_withheld(refused: Path) -> None:
    report = diagnose([refused], allow_model=False, with_text=False)
    for name, texts in rendered(report).items():
        assert WORD not in "".join(texts), name
