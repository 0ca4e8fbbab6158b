"""A run made by an enemy: text in every place a run has for text, in every format."""

import contextlib
import io
import json
import re
import shutil
import unicodedata
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.cli import main
from mlxdoctor.formats import summary
from mlxdoctor.formats.format import formats as all_formats
from mlxdoctor.formats.format import text_of
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.safety.quoting import quoted
from tests.conftest import RUNS
from tests.formats import sample
from tests.formats.page import live_in_markdown, live_in_page
from tests.formats.test_no_text import CANARIES, FILES, plant, rendered

#: One text with everything in it that some reader of a report would obey. The word in it
#: tells where it comes out again.
WORD = "evilword"
TEXT = (
    f"{WORD} <script>alert(1)</script><img src=x onerror=alert(2)> [c](https://evil.example/a) "
    "![p](https://evil.example/p.png) https://evil.example www.evil.example <https://evil.example> "
    "`x` **b** | a | b | @someone $x$ &lt; \x1b[31mred\x1b]0;title\x07 \u202egnp.exe \u2066i\u2069 "
    "zero\u200bwidth \ufeff \x00\x08\x9b31m ::error::oops\n\n# heading\n\n- item\n\n```\nfence\n"
    "\n    code\n\n<details>\n\n</details>\n\n<summary>s</summary>\n\n[r]: https://evil.example\n"
)
#: As a file name: without a slash, and not too long.
NAME = f"{WORD} <img src=x onerror=alert(1)> ![p](evil.png) \x1b[31m\u202e `|` \n# h"
#: Of a report, a terminal may get line breaks, and joiners that shape letters.
HARMLESS = frozenset("\n\u200c\u200d")
#: Blocks and spans of code, in which nothing is obeyed.
FENCED = re.compile(r"^(```+).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
ACTIVE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
#: Put behind an "@" by ourselves, so that nobody is notified.
WORD_JOINER = "\u2060"

#: Formats of a report that are only printed.
PRINTED = [one.name for one in all_formats().values() if one.report and not one.suffix]
#: Files that the gate alone writes.
GATED = {
    one.name: f"gate.{one.suffix}"
    for one in all_formats().values()
    if one.suffix and not one.report
}


def is_active(one: str) -> bool:
    """Whether a character moves, colours, hides or reorders what a terminal shows."""
    return unicodedata.category(one) in ACTIVE and one not in HARMLESS


def save_adapter(path: Path, source: Path) -> None:
    """The adapter at `source`, with a tensor more whose name is hostile."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(source)
    rank = next(one.shape[1] for name, one in tensors.items() if name.endswith("lora_a"))
    name = f"model.layers.0.{TEXT}.q_proj"
    tensors[f"{name}.lora_a"] = np.full((64, rank), np.nan, np.float32)
    tensors[f"{name}.lora_b"] = np.zeros((rank, 64), np.float32)
    save_file(tensors, path, metadata={TEXT: TEXT})


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hostile `run`, `base` and `data`."""
    folder = tmp_path_factory.mktemp("hostile")
    source, run = RUNS / "collapse-frequent-token", folder / NAME
    run.mkdir()
    save_adapter(run / "adapters.safetensors", source / "adapters.safetensors")
    for name in ("0000100", "0000200", "0000300"):
        shutil.copy(source / f"{name}_adapters.safetensors", run)
    config = json.loads((source / "adapter_config.json").read_text())
    config |= {"model": TEXT, "data": TEXT, "optimizer": TEXT, "adapter_path": TEXT, TEXT: TEXT}
    config |= {"lr_schedule": {"name": TEXT, "arguments": [TEXT]}, "fine_tune_type": "lora"}
    config["lora_parameters"] |= {TEXT: TEXT, "keys": [TEXT]}
    (run / "adapter_config.json").write_text(json.dumps(config))
    log = (source / "train.log").read_text()
    # With a NUL it would count as binary, and not be read at all.
    one_line = TEXT.replace("\n", " ").replace("\x00", "")
    (run / f"{NAME[:40]}.log").write_text(
        f"{one_line}\nmodel: {one_line}\n{log}\nTraceback (most recent call last):\n"
        f"ValueError: {one_line}\n[METAL] Command buffer execution failed: {one_line}\n",
        "utf-8",
    )

    plant(folder, run, dict.fromkeys(CANARIES, TEXT), **{TEXT: TEXT})
    return folder


@pytest.fixture(scope="module")
def reports(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """File name -> content of every format, and "terminal"."""
    out = tmp_path_factory.mktemp("out")
    formats = [part for name in FILES for part in ("--format", name)]
    places = ["--base", str(hostile / "base"), "--data", str(hostile / "data")]
    command = ["diagnose", str(hostile / NAME), "--no-generate", *places, *formats, "-o", str(out)]
    printed = said(command)
    gated = [part for name in GATED for part in ("--format", name)]
    said(["gate", command[1], *gated, "-o", str(out)])
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".png"]
    return {**{path.name: path.read_text("utf-8") for path in files}, "terminal": printed}


def said(command: list[str]) -> str:
    """What a command prints, on both streams."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        main(command)
    return stream.getvalue()


def test_the_text_gets_into_every_report(reports: dict[str, str]) -> None:
    # Otherwise the tests below could not fail.
    assert set(reports) >= {*FILES.values(), *GATED.values(), "terminal"}
    assert all(WORD in text for text in reports.values())
    found = json.loads(reports["report.json"])
    told = {finding["code"] for one in found["outcomes"] for finding in one["findings"]}
    assert {"data-quality.one-answer", "data-format.unknown-roles"} <= told
    assert any(code.startswith("log-failures.") for code in told)
    assert any(code.startswith("token-collapse.") for code in told)
    assert not [one for one in found["outcomes"] if one["status"] == "crashed"]


#: Markup that a finding might repeat where it says what to do.
MARKUP = (
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


@pytest.mark.parametrize("text", MARKUP)
def test_what_a_finding_says_to_do_is_never_live_and_is_withheld(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What to do is in no picture, and drawing them is what takes the time.
    monkeypatch.setattr("mlxdoctor.formats.figures.draw", lambda *_: {})
    data = sample.unhealthy()
    cause = data["causes"]["learning-rate-too-high"]
    cause |= {"finding_says": True, "weights": dict.fromkeys(data["diagnosis"][0]["supporting"], 1)}
    # By an oversight without the marks of a quotation, and with them, as checks write it.
    for fix in (text, f"rename {quoted(text)} -> prompt"):
        for outcome in data["outcomes"]:
            for finding in outcome["findings"]:
                finding["fix"] = fix
        report = sample.made(data)
        assert WORD in summary.remedy(report)
        assert "49" not in summary.remedy(report)
        assert live_in_page(text_of(report, "html"), WORD) == []
        assert live_in_markdown(text_of(report, "markdown"), WORD) == []
    told = rendered(report)
    # What is only printed of a gate need not say what to do.
    shows_fixes = {*FILES, *GATED, *PRINTED}
    assert all(WORD in "".join(told[name]) for name in shows_fixes)
    shown = rendered(without_text(report, []))
    assert [name for name, one in shown.items() if WORD in "".join(one)] == []
    assert "rename “(withheld)”" in shown["markdown"][0]


def test_no_markup_is_its_own(reports: dict[str, str]) -> None:
    assert live_in_page(reports["report.html"], WORD) == []
    assert live_in_markdown(reports["report.md"], WORD) == []
    # GitHub makes links of bare addresses outside code, and notifies whoever is mentioned.
    outside = FENCED.sub("", reports["report.md"])
    assert not [one for one in ("https://evil", "www.evil", "@someone") if one in outside]


@pytest.mark.parametrize("name", [*FILES.values(), *GATED.values(), "terminal"])
def test_nothing_moves_hides_or_reorders(reports: dict[str, str], name: str) -> None:
    assert {one for one in reports[name] if is_active(one)} <= {WORD_JOINER}


def test_xml_and_json_can_be_read_and_a_ci_runner_gets_no_orders(reports: dict[str, str]) -> None:
    assert "::error::" not in reports["terminal"]
    xml.etree.ElementTree.fromstring(reports["gate.junit.xml"])
    for name in ("report.json", "gate.sarif"):
        json.loads(reports[name])


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "RUN"],
        ["inspect", "RUN", "--stdout", "markdown"],
        ["bisect", "RUN", "--no-generate"],
        ["bisect", "RUN", "--no-generate", "--stdout", "markdown"],
        ["labels", "DATA", "--base", "BASE"],
        ["labels", "DATA", "--base", "BASE", "--config", "RUN"],
        *(["diagnose", "RUN", "--no-generate", "--stdout", one] for one in PRINTED),
        ["gate", "RUN", "--stdout", "github"],
        ["diagnose", "RUN/missing\x1b[31m\u202e"],
        ["diagnose", "RUN", "--select", "\x1b[31m\u202e"],
        ["explain", "\x1b[31m\u202e"],
        ["convert", "RUN", "-o", "OUT"],
        ["lint", "RUN/missing\x1b[31m.py"],
    ],
    ids=lambda one: " ".join(one[:1] + one[2:]).encode("ascii", "replace").decode(),
)
def test_no_command_passes_on_what_a_terminal_obeys(
    hostile: Path, tmp_path: Path, command: list[str]
) -> None:
    places = {"RUN": str(hostile / NAME), "DATA": str(hostile / "data")}
    places |= {"BASE": str(hostile / "base"), "OUT": str(tmp_path / "out")}
    for name, place in places.items():
        command = [one.replace(name, place) for one in command]
    text = said(command)
    assert text
    assert "Traceback" not in text.replace("Traceback (most recent call last):", "", 1)
    assert {one for one in text if is_active(one)} <= {WORD_JOINER}
