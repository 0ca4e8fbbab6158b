"""Rate × scale against the guideline."""

from types import SimpleNamespace

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from tests.checks.data_evidence import config_of, run
from tests.checks.log_evidence import LogWriter, decay
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

learning_rate = check_called("learning-rate")
CORRECTED = {"optimizer_config": {"adam": {"bias_correction": True}}}


def judged(config, parameters=None):
    """What is said for a model of that many parameters; the check reads nothing else of it."""
    base = SimpleNamespace(parameter_count=parameters, vocab_size=None) if parameters else None
    given = {TrainingConfig: config, BaseModel: base}
    run = SimpleNamespace(get=given.get, need=given.get, is_planned=False)
    return learning_rate.run(run)


def with_step(tmp_path, rate, scale=20.0, **more):
    parameters = {"rank": 8, "dropout": 0.0, "scale": scale}
    return config_of(tmp_path, learning_rate=rate, lora_parameters=parameters, **CORRECTED, **more)


@pytest.mark.parametrize(
    ("parameters", "rate", "scale", "expected"),
    [
        # The incident this tool began with, and its cure.
        (3.2e9, 2e-4, 20, {"above-guideline": "warning"}),
        (3.2e9, 2e-5, 20, {}),
        (3.2e9, 5e-5, 20, {"above-guideline": "info"}),
        # A negative scale steps as far.
        (3.2e9, 2e-4, -20, {"above-guideline": "warning"}),
        # mlx-lm's defaults.
        (6e8, 1e-5, 20, {}),
        (8e9, 1e-5, 20, {}),
        # The best rates of sweeps with alpha / rank.
        (1.2e9, 1e-3, 1, {}),
        (8e9, 3e-4, 1, {}),
        # Recorded runs of a tiny model: sound, garbled, NaN.
        (4.8e5, 3e-4, 20, {}),
        (4.8e5, 2e-3, 20, {"above-guideline": "info"}),
        (4.8e5, 2e-2, 20, {"above-guideline": "warning"}),
        (3.2e9, 1e-6, 20, {"below-guideline": "info"}),
        (3.2e9, 1e-8, 20, {"below-guideline": "warning"}),
        # Without the model's size nothing is more than a note.
        (None, 1e-4, 20, {"above-guideline": "info"}),
        (None, 2e-3, 20, {"above-guideline": "info"}),
        # No rate to learn at.
        (3e9, 0, 20, {"zero": "error"}),
        (3e9, 0.0, 20, {"zero": "error"}),
        (3e9, -1e-5, 20, {"not-a-rate": "error"}),
        (3e9, float("nan"), 20, {"not-a-rate": "error"}),
        (3e9, -float("inf"), 20, {"not-a-rate": "error"}),
    ],
)
def test_the_band(tmp_path, parameters, rate, scale, expected):
    assert severities(judged(with_step(tmp_path, rate, scale), parameters)) == expected


@pytest.mark.parametrize(("scale", "hit"), [(63, False), (64, True), (160, True)])
def test_a_scale_like_an_alpha(tmp_path, scale, hit):
    codes = severities(judged(with_step(tmp_path, 2e-4 / scale, scale), 3e9))
    assert ("scale-looks-like-alpha" in codes) is hit


def test_of_a_scale_that_is_an_alpha_the_scale_is_to_be_changed_and_not_the_rate(tmp_path):
    scale, step = judged(with_step(tmp_path, 2e-5, 512), 3e9).findings
    assert scale.measured["advised_scale"] == 20  # 512 / 8 would still be too much at this rate
    assert step.code.endswith("above-guideline")
    assert step.measured["advised_learning_rate"] is None


def test_full_fine_tuning_has_no_band_but_zero_is_zero(tmp_path):
    full = config_of(tmp_path, fine_tune_type="full", learning_rate=1.0)
    assert run(learning_rate, full)[0].status.value == "skipped"
    zero = config_of(tmp_path, fine_tune_type="full", learning_rate=0.0)
    assert run(learning_rate, zero)[1] == {"zero": "error"}


@pytest.mark.parametrize(
    ("name", "severity", "words"),
    [
        ("models/llama-3.2-3b-instruct", "warning", "3 billion parameters (by its name)"),
        ("models/mine", "info", "unknown size (taken for a billion parameters)"),
    ],
)
def test_before_a_run_the_name_tells_the_size(tmp_path, name, severity, words):
    (finding,) = judged(with_step(tmp_path, 2e-3, model=name)).findings
    assert finding.severity.value == severity
    assert words in finding.message
    assert f"{finding.measured['times']:.3g} times the highest usual value" in finding.message


def test_a_tenth_of_the_rate_is_advised_where_that_is_usual(tmp_path):
    (finding,) = judged(with_step(tmp_path, 2e-4), 3.2e9).findings
    assert finding.fix == "set learning_rate to 2e-05"
    assert finding.measured["advised_learning_rate"] == 2e-5
    (finding,) = judged(with_step(tmp_path, 2e-1), 3.2e9).findings
    low, high = finding.measured["guideline"]
    assert low <= float(finding.fix.rsplit(" ", 1)[1]) * 20 <= high


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        # A fifth is lost, and much of it late.
        ([5.0 - 0.07 * i for i in range(15)], "error"),
        # Half is lost, or it has flattened, or it never moved, or there are too few reports.
        ([5.0 - 0.2 * i for i in range(15)], "warning"),
        (decay(15, 5.0, 4.0, 0.0), "warning"),
        ([5.0] * 15, "warning"),
        ([5.0 - 0.1 * i for i in range(8)], "warning"),
    ],
)
def test_a_loss_that_still_falls_with_steps_far_below_the_band(tmp_path, losses, severity):
    log = LogWriter(tmp_path).losses(losses)
    config = with_step(tmp_path, 1e-8, model="llama-3.2-3b", optimizer="adam")
    outcome = judge(learning_rate, config, log)
    assert severities(outcome) == {"below-guideline": severity}
    assert ("still fell at the end" in outcome.findings[0].message) is (severity == "error")
    sgd = with_step(tmp_path, 1e-8, model="llama-3.2-3b", optimizer="sgd")
    assert severities(judge(learning_rate, sgd, log)) == {"below-guideline": "warning"}
