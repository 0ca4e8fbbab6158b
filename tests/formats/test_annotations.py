import re
from dataclasses import dataclass, replace

import pytest

from mlxdoctor.formats import annotations
from mlxdoctor.formats.escape import terminal
from mlxdoctor.gate.policy import Policy, Rules
from mlxdoctor.gate_result import GateResult
from tests.conftest import ROOT
from tests.formats import gated_runs
from tests.formats.gated_runs import COLLAPSED, HEALTHY, OVERFITTED, hostile
from tests.formats.test_escape import HOSTILE

INJECTIONS = [
    *HOSTILE,
    "x\n::set-output name=a::b",
    "x\r::error::forged",
    "::stop-commands::x",
    "a%0A::warning::forged",
    "file,line=3::x",
    "##[error]forged",
    "\u2028::error::forged",
]

pytestmark = pytest.mark.usefixtures("_in_the_checkout")


@dataclass(frozen=True)
class Command:
    """A workflow command, read as GitHub's runner reads it."""

    kind: str
    properties: dict[str, str]
    message: str


def unescaped(text: str, *more: tuple[str, str]) -> str:
    for written, meant in (("%0D", "\r"), ("%0A", "\n"), *more, ("%25", "%")):
        text = text.replace(written, meant)
    return text


def commands(text: str) -> list[Command]:
    read = []
    for line in text.splitlines():
        found = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        assert found is not None, line
        pairs = [one.split("=", 1) for one in found[2].split(",")]
        properties = {name: unescaped(value, ("%3A", ":"), ("%2C", ",")) for name, value in pairs}
        read.append(Command(found[1], properties, unescaped(found[3])))
    return read


def test_an_error_an_item_that_did_not_pass_with_its_root_cause_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(annotations, "MAX_FINDINGS", 3)
    (one,) = commands(annotations.render(GateResult((gated_runs.item(COLLAPSED),), None)))
    assert one.kind == "error"
    assert one.properties == {
        "file": f"fixtures/runs/{COLLAPSED}/adapters.safetensors",
        "title": f"fixtures/runs/{COLLAPSED}: failed",
    }
    first, *rest = one.message.splitlines()
    assert first == "Root cause: the learning rate is too high."
    assert any(line.startswith("loss-trend.diverged: The loss ends at") for line in rest)
    failing = [one for one in gated_runs.item(COLLAPSED).findings if one.ruling == "fails"]
    assert len(failing) > annotations.MAX_FINDINGS
    assert rest[-1] == f"and {len(failing) - annotations.MAX_FINDINGS} more"


@pytest.mark.slow
def test_every_status_and_the_policy_and_the_interruption_are_said() -> None:
    found = commands(annotations.render(gated_runs.result()))
    titles = [(one.kind, one.properties["title"]) for one in found]
    assert titles == [
        ("error", "mlxdoctor gate: unfinished"),
        ("error", f"fixtures/runs/{COLLAPSED}: failed"),
        ("error", "fixtures/runs: inconclusive"),
        ("error", "fixtures/runs/absent: unusable"),
        ("warning", "mlxdoctor gate: the policy"),
        ("warning", f"fixtures/runs/{OVERFITTED}: passed, noted"),
    ]
    assert found[4].properties["file"] == "pyproject.toml"
    assert "adapter-presence crashed" in found[2].message
    assert "no such file" in found[3].message


def test_a_healthy_run_and_a_suppressed_finding_say_nothing() -> None:
    assert annotations.render(GateResult((gated_runs.item(HEALTHY),), None)) == ""
    policy = Policy(ROOT, ignores=(gated_runs.ACCEPTED,))
    (one,) = commands(annotations.render(GateResult((gated_runs.item(COLLAPSED, policy),), None)))
    assert "loss-level" in one.message
    assert "loss-trend" not in one.message


def test_at_most_ten_of_a_kind_and_the_tenth_counts_the_rest() -> None:
    failed = gated_runs.item(COLLAPSED)
    noted = gated_runs.item(OVERFITTED, Policy(ROOT, rules=Rules(fail_on="never")))

    def shown(count: int) -> list[Command]:
        items = [replace(failed, path=f"adapters/{number}") for number in range(count)]
        items += [replace(noted, path=f"noted/{number}") for number in range(count)]
        return commands(annotations.render(GateResult(tuple(items), None)))

    ten = shown(10)
    assert [one.kind for one in ten] == ["error"] * 10 + ["warning"] * 10
    assert ten[9].properties["title"] == "adapters/9: failed"
    found = shown(25)
    assert [one.kind for one in found] == ["error"] * 10 + ["warning"] * 10
    assert found[9].message == (
        "16 more: adapters/9, adapters/10, adapters/11, adapters/12, adapters/13, …"
    )
    assert found[19].message.startswith("16 more: noted/9, ")


@pytest.mark.parametrize("text", INJECTIONS)
def test_nothing_written_by_others_is_a_command_or_a_property(text: str) -> None:
    written = annotations.render(hostile(text))
    assert written.count("\n") == len(written.splitlines())
    found = commands(written)
    assert [one.kind for one in found] == ["error"] * 3 + ["warning"] * 2
    for one in found:
        assert one.properties.keys() <= {"file", "title"}
        for line in one.message.splitlines():
            assert "##[" not in line
            assert not re.search(r"::[a-z-]+(\s[^:]*)?::", line)


@pytest.mark.parametrize("text", ["::error::x", "a ::warning file=b::x", "##[error]x", "x::a::y"])
def test_the_terminal_cannot_command_a_runner(text: str) -> None:
    """A line may be wrapped in any place, and then begins with what stood there."""
    shown = terminal(text)
    for start in range(len(shown)):
        line = shown[start:].lstrip()
        assert re.match(r"::[A-Za-z-]+(\s[^\n]*?)?::", line) is None
        assert "##[" not in line


def test_the_terminal_leaves_other_colons_alone() -> None:
    for text in ("train.py::make_step", "a::b", ":: x ::", "12:30", "## [x]"):
        assert terminal(text) == text
