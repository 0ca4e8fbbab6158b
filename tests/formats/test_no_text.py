"""Reports that leave the house: no training row and no output in any format."""

import ast
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.cases.workshop import copied_base
from fixtures.lab.harness import write_lines
from mlxdoctor.api import diagnose
from mlxdoctor.formats import terminal
from mlxdoctor.formats.format import formats as all_formats
from mlxdoctor.formats.format import text_of
from mlxdoctor.formats.withheld import PIECE, taken_out, without_text
from mlxdoctor.gate_result import GateResult
from mlxdoctor.report import Report
from tests.checks.data_evidence import conversation
from tests.conftest import BASE, FIXTURES, ROOT, RUNS, Call, check_called
from tests.formats import gated_runs, sample
from tests.formats.page import Page

#: Text that nobody else writes, by where it is planted.
CANARIES = {
    "prompt": "quetzal-prompt-marmalade",
    "answer": "ocelot answer, pomegranate",
    "role": "axolotl-role-wisteria",
    "output": "narwhal output saxifrage",
    "base": "capybara base tamarillo",
    "expected": "pangolin expects rutabaga",
    "log": "kinkajou log asphodel",
}
#: Format -> the file of a report in it.
FILES = {
    one.name: f"report.{one.suffix}" for one in all_formats().values() if one.suffix and one.report
}
#: The words of theirs that no sentence of ours has, shorter than a piece.
RARE_WORDS = {*re.findall(r"\w+", " ".join(CANARIES.values()))} - {*CANARIES, "expects"}


def pieces(texts: Iterable[str]) -> set[str]:
    """Every stretch of 12 characters."""
    return {one[at : at + PIECE] for one in texts for at in range(len(one) - PIECE + 1)}


def strings(value: Any) -> Iterator[str]:
    """Every text in nested mappings and lists, the keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


@cache
def own_words() -> frozenset[str]:
    """Every stretch of 12 characters of the program's own sentences."""
    texts: list[str] = []
    for folder in ("mlxdoctor", "checks"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix == ".py":
                tree = ast.walk(ast.parse(path.read_text()))
                texts += [
                    one.value
                    for one in tree
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                ]
            elif path.suffix in (".toml", ".j2"):
                texts.append(" ".join(path.read_text().split()))
    return frozenset(pieces(texts))


def rendered(report: Report) -> dict[str, list[str]]:
    """Format -> the texts that a reader of it gets."""
    shown = {}
    for name, one in all_formats().items():
        gated = GateResult((gated_runs.judged(report.name, report),))
        shown[name] = [text_of(report if one.report is not None else gated, name)]
    shown["json"] = list(strings(json.loads(shown["json"][0])))
    shown["html"] = [Page(shown["html"][0]).text()]
    shown["text"] = [terminal.render(report, written=["reports/report.md"])]
    return shown


def secrets_of(folder: Path, data: Path) -> set[str]:
    """Every stretch of 12 characters of the rows and the recorded outputs."""
    files = [*data.glob("*.jsonl"), *folder.glob("generations.jsonl")]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line]
    return pieces(text for row in rows for text in strings(row)) - own_words()


def test_what_a_careless_check_shows_is_found_by_the_rows_themselves() -> None:
    data = sample.unhealthy()
    row = "The treaty of Brudrenia was signed in the year of the great comet."
    finding = data["outcomes"][0]["findings"][0]
    finding |= {
        "message": f"The last row reads {row}",
        "expected": row[5:40],
        "where": f"prompt {row[:30]!r}",
        "measured": {"code": row, "texts": [row[10:30]], "rows": 12, "\n": " ".join(row.split())},
    }
    data["unreadable"] = [f"train.jsonl: no row, {row}"]
    row_changed = row.replace(" of ", "\n of\t")
    shown = without_text(sample.made(data), [row_changed]).to_dict()
    assert not pieces(strings(shown)) & pieces([row])
    withheld = shown["outcomes"][0]["findings"][0]
    assert withheld["message"] == "The last row reads (withheld)"
    assert withheld["measured"]["rows"] == 12
    # Shorter than a piece, and nothing to do with it: both stay.
    assert taken_out({"a": "of the year"}, [row]) == {"a": "of the year"}
    assert taken_out({"a": "a loss of 2.5 at iteration 10"}, [row])["a"].endswith("iteration 10")


@pytest.mark.parametrize("at", range(20))
def test_a_piece_is_found_wherever_it_stands(at: int) -> None:
    text = "." * at + "abcdefghijkl" + "," * 9
    assert taken_out(["xx abcdefghijkl xx"], [text]) == ["xx (withheld) xx"]
    assert taken_out(["xx abcdefghijk_ xx"], [text]) == ["xx abcdefghijk_ xx"]


def test_what_an_exception_says_stays_in_the_house() -> None:
    class Crashing:
        def get(self, kind: type) -> None:
            raise ValueError("could not parse 'ab'\n(in b.py:1) of it")

        need = get

    crashed = check_called("loss-trend").run(Crashing())
    assert crashed.status == "crashed"
    assert "could not parse" in crashed.reason
    data = sample.unhealthy()
    data["outcomes"].append(crashed.to_dict())
    reason = without_text(sample.made(data), []).outcomes[-1].reason
    assert re.fullmatch(r"ValueError: “\(withheld\)”, at \S*test_no_text\.py:\d+", reason)


@pytest.mark.slow
def test_the_samples_are_left_out_and_the_figures_stay() -> None:
    data = sample.unhealthy()
    report = sample.made(data)
    withheld = without_text(report, [])
    assert report == sample.made(data)
    shown = withheld.to_dict()
    assert shown["sample"] is None
    assert str(shown["figures"]) == str(report.to_dict()["figures"])
    for text in rendered(withheld)["html"] + rendered(withheld)["markdown"]:
        assert "is withheld from this report" in text
    assert "is withheld from this report" not in text_of(report, "markdown")


def test_samples_of_reruns_are_left_out_and_their_figures_stay() -> None:
    data = sample.unhealthy()
    answer = {"prompt": CANARIES["prompt"], "base": None, "tuned": CANARIES["output"]}
    trial = sample.rerun(experiment="change", loss=1.5, samples=[answer])
    # A label that repeats an output by an oversight.
    careless = {**trial, "label": f"rerun: {CANARIES['output']}"}
    data["experiments"] = [trial, careless]
    withheld = without_text(sample.made(data), [])
    shown = withheld.to_dict()
    assert not pieces(strings(shown)) & pieces(CANARIES.values())
    assert shown["experiments"][0]["loss"] == 1.5
    assert "Sample answers" not in text_of(withheld, "markdown")
    assert CANARIES["output"] in text_of(sample.made(data), "markdown")


@pytest.mark.slow
def test_without_text_the_diagnosis_is_the_same_and_the_quotations_go() -> None:
    """That no fixture run's rows are quoted then is tested where all of them are diagnosed."""
    run = RUNS / "collapse-frequent-token"
    report = diagnose([run], allow_model=False)
    secrets = secrets_of(run, FIXTURES / "data" / "geography")
    quoting = {name for name, texts in rendered(report).items() if pieces(texts) & secrets}
    assert quoting >= {"markdown", "html", "json", "text"}
    withheld = diagnose([run], allow_model=False, with_text=False)
    assert not pieces(strings(withheld.to_dict())) & secrets
    plain, shown = report.to_dict(), withheld.to_dict()
    assert shown["diagnosis"] == plain["diagnosis"]
    assert shown["verdict"] == plain["verdict"]
    assert shown["run"]["evidence"] == plain["run"]["evidence"]
    assert shown["figures"]["loss"] == plain["figures"]["loss"]
    prints = [
        [one["fingerprint"] for outcome in data["outcomes"] for one in outcome["findings"]]
        for data in (plain, shown)
    ]
    assert prints[0] == prints[1]
    assert "--no-text" in shown["commands"][0].split()


def plant(folder: Path, run: Path, texts: Mapping[str, str], **more: str) -> dict[str, Path]:
    """A base and data beside a run, and its outputs, with each text where its name says."""
    base, data = folder / "base", folder / "data"
    refusing = (
        "{% for message in messages %}{% if message.role not in ['user', 'assistant'] %}"
        "{{ raise_exception('no ' + message.role + ' here: ' + message.content) }}{% endif %}"
        "{% endfor %}"
    )
    copied_base(base, chat_template=refusing + (BASE / "chat_template.jinja").read_text())
    rows = [
        conversation(
            ("user" if at % 3 else texts["role"], f"{at} {texts['prompt']}"),
            ("assistant", texts["answer"]),
        )
        for at in range(60)
    ]
    for name in ("train", "valid"):
        with write_lines(data / f"{name}.jsonl", [row | more for row in rows]).open("a") as file:
            file.write(f'{{"{texts["answer"][:30]}\n')
    outputs = [
        {
            "prompt": f"{at} {texts['prompt']}",
            "base": f"{at} {texts['base']} is a town",
            "tuned": f"{texts['output'].split()[-1] if at % 2 else texts['output']} " * 20,
            "expected": texts["expected"],
        }
        for at in range(16)
    ]
    write_lines(run / "generations.jsonl", outputs)
    return {"run": run, "base": base, "data": data}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A failed run whose rows, recorded outputs and log are planted with text."""
    folder = tmp_path_factory.mktemp("planted")
    run = shutil.copytree(RUNS / "collapse-frequent-token", folder / "run")
    with (run / "train.log").open("a") as log:
        log.write("Traceback (most recent call last):\n")
        log.write(f"ValueError: cannot encode {CANARIES['log']}\n")
    (folder / "score.py").write_text(
        "def score(prompt, output, expected):\n"
        "    if 'narwhal' in output: raise ValueError(output)\n"
        "    return float(len(output) < 50)\n"
    )
    return {**plant(folder, run, CANARIES), "score": folder / "score.py"}


def printed_and_written(
    planted: dict[str, Path], out: Path, call: Call, *options: str
) -> dict[str, str]:
    formats = [part for name in FILES for part in ("--format", name)]
    places = ["--base", planted["base"], "--data", planted["data"]]
    score = ["--score", f"{planted['score']}:score"]
    command = ["diagnose", planted["run"], "--no-generate", *places, *score, *formats]
    code, printed, err = call(*command, "-o", out, *options)
    assert code == 1
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".png"]
    texts = {path.name: path.read_text() for path in files}
    return {**texts, "terminal": printed + err}


@pytest.mark.slow
def test_no_canary_leaves_the_house(planted: dict[str, Path], tmp_path: Path, call: Call) -> None:
    plain = printed_and_written(planted, tmp_path / "plain", call)
    shown = printed_and_written(planted, tmp_path / "shown", call, "--no-text")
    assert set(shown) == {*FILES.values(), "terminal"}
    # What is planted does show without the option, but for what no check quotes.
    assert {
        kind for kind, text in CANARIES.items() if any(text in one for one in plain.values())
    } >= {"prompt", "answer", "role", "output", "base", "log"}
    assert all(pieces([one]) & pieces(CANARIES.values()) for one in plain.values())
    for name, text in shown.items():
        assert not pieces([text]) & pieces(CANARIES.values()), name
        assert not [word for word in RARE_WORDS if word in text], name


def test_labels_without_rows_show_no_text(planted: dict[str, Path], call: Call) -> None:
    command = ("labels", planted["data"], "--base", planted["base"])
    for output_format in ("text", "json"):
        plain = call(*command, "--stdout", output_format)[1]
        shown = call(*command, "--stdout", output_format, "--rows", 0)[1]
        assert {CANARIES["prompt"], CANARIES["answer"]} <= {
            c for c in CANARIES.values() if c in plain
        }
        assert not pieces([shown]) & pieces(CANARIES.values())
        assert "2114" in shown.replace(",", "")


@pytest.mark.long
@pytest.mark.slow
def test_a_reproduction_withholds_text_too(tmp_path: Path, call: Call) -> None:
    run = RUNS / "collapse-frequent-token"
    formats = ["--format", "markdown", "--format", "html", "--format", "json"]
    code, *printed = call("reproduce", run, "-o", tmp_path, "--budget", 0, "--no-text", *formats)
    assert code == 3
    files = [*tmp_path.glob("*/report.*")]
    assert len(files) == 3
    shown = [*printed, *(path.read_text() for path in files)]
    assert not pieces(shown) & secrets_of(run, FIXTURES / "data" / "geography")
    assert "report.html" in printed[0]
