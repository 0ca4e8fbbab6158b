from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.formats import summary
from mlxdoctor.formats.format import text_of
from tests.formats import sample

CAUSES, RATE = sample.unhealthy()["causes"], "learning-rate-too-high"


def of(function: Callable[..., Any], data: dict[str, Any], *more: Any) -> Any:
    return function(sample.made(data), *more)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.148, "2.148"),
        (10.965, "10.96"),
        (10.0, "10"),
        (1234567, "1,234,567"),
        (123456.7, "123,457"),
        (0.0, "0"),
        (2e-05, "2e-5"),
        (1.23456e-7, "1.235e-7"),
        (0.0012345, "0.001234"),
        (1.5e9, "1.5e9"),
        (float("nan"), "NaN"),
        (float("-inf"), "-infinity"),
        (True, "yes"),
        (None, "none"),
        ("text", "text"),
        ((1, 2.5), "1, 2.5"),
    ],
)
def test_numbers_read_as_people_write_them(value: Any, text: str) -> None:
    assert summary.number(value) == text


@pytest.mark.parametrize(
    ("written", "text", "expected"),
    [
        # The name of a folder stays where it belongs.
        (summary.slug, "llama-3.2", "llama-3.2"),
        (summary.slug, "../../etc/passwd", "etc-passwd"),
        (summary.slug, "..", "run"),
        (summary.slug, "", "run"),
        (summary.slug, "a b;rm -rf $HOME", "a-b-rm--rf--HOME"),
        (summary.slug, "имя", "run"),
        (summary.slug, "x" * 300, "x" * 80),
        (summary.slug, ".hidden", "hidden"),
        # Titles follow a colon with names intact.
        (summary.lowered, "The loss rises", "the loss rises"),
        (summary.lowered, "LoRA was not attached", "LoRA was not attached"),
        (summary.lowered, "NaN in the loss", "NaN in the loss"),
        (summary.lowered, "B is zero", "B is zero"),
        (summary.lowered, "A batch overflows", "a batch overflows"),
        # The name of a file gets no capital.
        (summary.sentence, "it was cut off", "It was cut off."),
        (summary.sentence, "adapters/a: is empty", "adapters/a: is empty."),
        (summary.sentence, "adapters.safetensors is older", "adapters.safetensors is older."),
    ],
)
def test_names_titles_and_sentences(
    written: Callable[[str], str], text: str, expected: str
) -> None:
    assert written(text) == expected


@pytest.mark.parametrize(
    ("gap", "confirmation", "is_clear"),
    [
        (summary.CLEAR_MARGIN + 0.01, None, True),
        (summary.CLEAR_MARGIN - 0.01, None, False),
        (0.0, "confirmed", True),
        (9.0, "refuted", False),
        (9.0, "undecided", False),
    ],
)
def test_a_cause_is_clear_when_far_ahead_or_confirmed(
    gap: float, confirmation: str | None, is_clear: bool
) -> None:
    data = sample.unhealthy()
    first, second = data["diagnosis"]
    first["confirmation"] = confirmation
    second["score"] = first["score"] - gap
    assert of(summary.is_clear, data) is is_clear
    # A single one is.
    first["confirmation"] = None
    assert of(summary.is_clear, data | {"diagnosis": [first]})


def test_reasons_are_the_findings_that_count_for_the_cause_weightiest_first() -> None:
    data = sample.unhealthy()
    data["diagnosis"][0]["arithmetic"] = [
        {"code": "loss-trend.diverged", "group": "a", "weight": 0.0, "note": "counted already"},
        {"code": "loss-floors.worse-than-unigram", "group": "b", "weight": 1.0, "note": "found"},
        {"code": "config-sanity.no-seed", "group": "c", "weight": 2.0, "note": "found"},
        {"code": "adapter-drift.exploded", "group": "d", "weight": 9.0, "note": "not there"},
    ]
    codes = [one.code for one in of(summary.reasons, data, 3)]
    assert codes == ["config-sanity.no-seed", "loss-floors.worse-than-unigram"]


def test_without_a_cause_the_reasons_are_the_worst_findings_each_code_once() -> None:
    data = sample.unhealthy() | {"diagnosis": []}
    data["outcomes"][1]["findings"] *= 2
    codes = [one.code for one in of(summary.reasons, data, 5)]
    assert codes == ["loss-trend.diverged", "loss-floors.worse-than-unigram"]
    assert [one.code for one in of(summary.reasons, data, 1)] == codes[:1]


def with_models(data: dict[str, Any]) -> dict[str, Any]:
    """The report of a run whose base model and rows are at hand."""
    data["run"]["evidence"] += [
        sample.file("base model", "b", None),
        sample.file("dataset", "d", None),
    ]
    return data


def test_an_experiment_confirms_where_the_run_can_be_made_again() -> None:
    data = with_models(sample.unhealthy())
    command = "mlxdoctor diagnose runs/llama-commas --confirm"
    assert of(summary.confirm_command, data) == command
    assert of(summary.screen, data).confirm == command
    for name in ("text", "markdown"):
        assert command in text_of(sample.made(data), name)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "healthy"},
        {"diagnosis": []},
        {"run": sample.unhealthy()["run"]},
        {"experiments": [sample.rerun()]},
        {"causes": {**CAUSES, RATE: {**CAUSES[RATE], "no_experiment": "nothing trains"}}},
    ],
)
def test_no_experiment_is_named_that_can_not_be_made(change: dict[str, Any]) -> None:
    assert of(summary.confirm_command, with_models(sample.unhealthy()) | change) == ""


def test_missing_kinds_with_one_reason_are_named_together() -> None:
    data = sample.unhealthy()
    data["run"]["missing"] = [
        {"kind": "base model", "why": "not here"},
        {"kind": "adapter", "why": "no file"},
        {"kind": "tokenizer", "why": "not here"},
    ]
    assert of(summary.missing, data) == {
        "not here": ["base model", "tokenizer"],
        "no file": ["adapter"],
    }


def test_the_first_screen_shows_what_the_model_answers() -> None:
    data = sample.unhealthy()
    sentence = of(summary.sample_sentence, data)
    assert sentence == (
        f"Asked 'What is 2 + 2?', it answers '{',' * summary.SAMPLE_CHARACTERS}…'; "
        "the base model, '2 + 2 is 4.'."
    )
    data["sample"] = {"prompt": "", "base": None, "tuned": "no"}
    assert of(summary.sample_sentence, data) == "It answers 'no'."
    data["sample"] = {"prompt": "", "base": "no", "tuned": "no"}
    assert of(summary.sample_sentence, data) == "It answers 'no', as the base model does."
    data["sample"] = None
    assert of(summary.sample_sentence, data) is None


def test_what_the_time_did_not_allow_is_told_with_what_to_do() -> None:
    report = sample.made(sample.healthy())
    assert summary.left_out(report) == ""
    short = replace(report, left_out=("8 of 32 rows were measured: the time budget of 60 s",))
    said = "Not all was measured: 8 of 32 rows were measured: the time budget of 60 s."
    assert summary.left_out(short) == f"{said} A larger --budget measures more."
    for name in ("text", "markdown", "html"):
        shown = " ".join(text_of(short, name).split())
        assert "8 of 32 rows were measured" in shown
        assert "Not all was measured" not in text_of(report, name)
    # What would change nothing is no advice.
    clear = replace(sample.made(sample.unhealthy()), left_out=short.left_out)
    assert summary.headline(clear).startswith("Root cause")
    assert summary.left_out(clear) == ""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "What the training recorded shows no fault."),
        (["replay.as-computed"], "What the training recorded was computed again, and agrees."),
    ],
)
def test_poor_answers_of_a_sound_training_are_said_first(more: list[str], said: str) -> None:
    data = sample.healthy()
    loops = sample.finding("token-collapse.repetition", "error", "16 of 30 answers loop.")
    agreeing = [sample.finding(code, "info", "As computed.") for code in more]
    data["outcomes"].append(sample.outcome("token-collapse", "found", loops, *agreeing))
    report = sample.made(data)
    for name in ("text", "markdown", "html"):
        shown = " ".join(text_of(report, name).split())
        assert "Healthy training, but the tuned model's answers are poor" in shown
        assert "16 of 30 answers loop." in shown
        assert said in shown
    # What the healthy run shows beside its answers is no word on them.
    data = sample.healthy()
    padding = sample.finding("learned-targets.padding-learned", "error", "It goes on with padding.")
    data["outcomes"].append(sample.outcome("learned-targets", "found", padding))
    for plain in (data, sample.healthy()):
        assert summary.headline(sample.made(plain)).startswith("Healthy: ")


@pytest.mark.parametrize(
    "losses", ["9.81 8.92 8.11 11.413 nan nan", "2.1 1.9 1.8 4.2 9.1 10.4 10.6 10.5 10.7 10.6 nan"]
)
def test_of_a_loss_that_rose_until_it_was_nan_the_first_screen_says_nan(
    losses: str, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    rows = enumerate(losses.split(), 1)
    log.write_text("".join(f"Iter {row}0: Train loss {loss}, It/sec 1.0\n" for row, loss in rows))
    report = diagnose(log)
    assert "The training loss is not finite from iteration" in summary.screen(report).facts[0]
    (at_chance,) = (one for one in report.findings if one.code == "loss-level.stays-at-chance")
    begins = 10 * losses.split().index("nan") + 10
    assert at_chance.message.startswith(
        f"Before iteration {begins}, from where on it is not finite"
    )


CUT = "Some sequences are longer than 64 tokens. The longest sentence 80 will be truncated to 64."


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (
            [f"Iter {at}: Train loss {3 - at / 50:.3f}" for at in range(10, 60, 10)] + [CUT],
            ["The training loss fell from 2.800 at iteration 10 to 2.000", "The trainer warned 1"],
        ),
        (
            ["step,acc,loss", *(f"{at},{0.94 - at / 250:.3f},0.0{at}" for at in range(10, 60, 10))],
            ["The accuracy goes from 0.9 to 0.74 in 5 reports."],
        ),
        # Parts of epochs number nothing.
        (
            ["  Epoch  Loss  Norm", "  0.8  2.07  61.8", "  1.0  1.45  51.1", "  1.8  1.29  6"],
            ["The training loss fell from 2.070 at report 1 to 1.290"],
        ),
    ],
)
def test_a_log_alone_shows_what_there_is(
    tmp_path: Path, lines: list[str], facts: list[str]
) -> None:
    (tmp_path / "train.log").write_text("\n".join(lines))
    shown = summary.screen(diagnose(tmp_path / "train.log"))
    too_little = "Inconclusive: too little shows whether the model learned"
    assert (shown.headline == too_little) != ("loss fell" in facts[0])
    for fact in facts:
        assert any(each.startswith(fact) for each in shown.facts)
    assert "By the log alone" in shown.remarks[0]
    assert shown.remarks[1].startswith("Most useful next: the run's folder")


def test_a_log_that_says_it_trains_whole_weights_is_believed(tmp_path: Path) -> None:
    lines = [
        "use_lora = False",
        "Total parameters: 124,439,808",
        "Trainable parameters: 124,439,808",
    ]
    lines += [
        f"step {at}: train loss {4 - at / 100}, val loss {4 - at / 100}" for at in range(0, 90, 10)
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    assert diagnose(path).verdict == "inconclusive"
    path.write_text("\n".join(lines[1:]))
    assert diagnose(path).verdict == "suspect"
