from collections.abc import Sequence

import pytest

from tests.checks.log_evidence import LogWriter, errors, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

log_failures = check_called("log-failures")


START = "Starting training..., iters: 100"
REPORTS = tuple(f"Iter {i}: Train loss 2.0, It/sec 1.0" for i in range(10, 110, 10))
TRACE = ("Traceback (most recent call last):", "  x")
OOM = "libc++abi: terminating due to std::runtime_error: [METAL] Insufficient Memory"


@pytest.mark.parametrize(
    ("after", "symptoms"),
    [
        ((OOM, "zsh: abort      mlx_lm.lora"), {"out-of-memory": "error"}),
        ((*TRACE, "ValueError: y"), {"traceback": "error"}),
        (TRACE, {"traceback": "error"}),
        (["(raylet) Some common causes include: (1) the OOM killer killed it"], {}),
        ((*TRACE, "MemoryError"), {"out-of-memory": "error"}),
        ([f"[rank0]: {line}" for line in (*TRACE, "ValueError: y")], {"traceback": "error"}),
        ((*TRACE, "OSError: No space left on device"), {"disk-full": "error"}),
        (("zsh: killed     mlx_lm.lora",), {"killed": "error"}),
        (("Calculating loss of the killed seals",), {}),
        (("zsh: segmentation fault  mlx_lm.lora",), {"aborted": "error"}),
        (("[METAL] Command buffer execution failed: Timeout",), {"gpu-error": "error"}),
        ((*TRACE, "KeyboardInterrupt"), {"interrupted": "warning"}),
        (("KeyError: 'messages'",), {"rows-refused": "error"}),
        (("ValueError: Validation set not found or empty. Must",), {"traceback": "error"}),
        (("Saved final weights to adapters.safetensors.",), {}),
    ],
)
def test_endings(logs: LogWriter, after: Sequence[str], symptoms: dict[str, str]) -> None:
    assert severities(judge(log_failures, logs.text(START, *REPORTS, *after))) == symptoms


@pytest.mark.parametrize(
    "over", ["Saved final weights to a.safetensors.", "Fine-tuning completed!", "[the cell ends]"]
)
def test_a_failure_after_the_training_is_none_of_it(logs: LogWriter, over: str) -> None:
    failed = (*TRACE, "ValueError: y")
    one = finding(judge(log_failures, logs.text(START, *REPORTS, over, *failed)), "traceback")
    assert (one.severity, one.onset) == ("info", None)
    assert one.message.startswith("There was an exception after the training was over")
    # Said of an epoch, before the last report, or before the announced end, it is not over.
    epoch = "Epoch 3 training finished, starting the next"
    assert errors(judge(log_failures, logs.text(START, *REPORTS, epoch, *failed)))
    assert errors(judge(log_failures, logs.text(START, *REPORTS[:5], over, *failed)))
    assert errors(judge(log_failures, logs.text(START, over, *REPORTS, *failed)))


def test_what_ends_a_thread_alone_and_an_exception_beside_another_failure(logs: LogWriter) -> None:
    thread = ("Exception in thread Thread-2 (_reader):", *TRACE, "ValueError: y")
    outcome = judge(log_failures, logs.text(START, *REPORTS, *thread))
    assert severities(outcome) == {"traceback": "info"}
    assert "does not end the program" in finding(outcome, "traceback").message
    outcome = judge(log_failures, logs.text(START, OOM, *TRACE, "ValueError: y"))
    assert severities(outcome) == {"out-of-memory": "error", "traceback": "info"}
    # Of two starts the last one's failure ended the log.
    outcome = judge(log_failures, logs.text(START, OOM, START, *TRACE, "ValueError: y"))
    assert severities(outcome) == {"out-of-memory": "info", "traceback": "error"}


def test_a_failure_before_the_run_was_survived(logs: LogWriter) -> None:
    outcome = judge(log_failures, logs.text(OOM, START, *REPORTS))
    assert severities(outcome) == {"out-of-memory": "info"}
    assert "reports follow" in finding(outcome, "out-of-memory").message


def test_the_exception_is_quoted_with_its_place(logs: LogWriter) -> None:
    outcome = judge(
        log_failures,
        logs.text(
            *REPORTS[:2],
            "Traceback (most recent call last):",
            '  File "/home/me/src/train/loop.py", line 41, in main',
            "    run_epoch(model)",
            '  File "/home/me/src/train/loop.py", line 12, in run_epoch',
            "    weights = table[index]",
            '  File "/opt/lib/python3.11/site-packages/mlx/nn/layers/base.py", line 9, in get',
            "    return self[name]",
            "IndexError: no such row",
        ),
    )
    one = finding(outcome, "traceback")
    assert "“IndexError: no such row”" in one.message
    assert one.where == "train/loop.py:12"
    assert one.measured["raised_at"] == "train/loop.py:12"
    assert one.onset == 20


def test_the_last_exception_counts(logs: LogWriter) -> None:
    log = logs.text(
        *TRACE,
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url",
        "The above exception was the direct cause of the following exception:",
        *TRACE,
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)",
    )
    one = finding(judge(log_failures, log), "model-refused")
    assert "gated" in one.message
    assert one.measured["line"] == 5


def test_a_traceback_as_rich_draws_it(logs: LogWriter) -> None:
    log = logs.text(
        "╭───── Traceback (most recent call last) ─────╮",
        "│ /home/me/train.py:7 in main                 │",
        "│                                             │",
        "│ ❱ 7     loss.backward()                     │",
        "╰─────────────────────────────────────────────╯",
        "AttributeError: 'array' object has no attribute 'backward'",
    )
    one = finding(judge(log_failures, log), "code-error")
    assert "“AttributeError: 'array' object has no attribute 'backward'”" in one.message
    assert len(log.notes.failures) == 1


@pytest.mark.parametrize(
    ("functions", "code", "says", "fix"),
    [
        (
            ["iterate"],
            "rows-refused",
            "fewer than one batch: 3, and a batch takes 4",
            "Set batch_size to 3 or less, or add rows.",
        ),
        (
            ["evaluate", "iterate"],
            "validation-refused",
            "validation rows are fewer than one batch: 3",
            "Add rows to valid.jsonl until it has 4, or set batch_size to 3 or less.",
        ),
    ],
)
def test_an_exception_that_is_known_says_what_to_do(
    logs: LogWriter, functions: list[str], code: str, says: str, fix: str
) -> None:
    path = "/opt/lib/python3.11/site-packages/mlx_lm/tuner/trainer.py"
    log = logs.text(
        "Traceback (most recent call last):",
        *(f'  File "{path}", line {i}, in {name}' for i, name in enumerate(functions, 119)),
        "ValueError: Dataset must have at least batch_size=4 examples but only has 3.",
    )
    sign = finding(judge(log_failures, log), code)
    assert says in sign.message
    assert sign.fix == fix
    # No frame is the user's own: the innermost is shown.
    assert sign.where == f"mlx_lm/tuner/trainer.py:{118 + len(functions)}"


def test_the_users_own_frame_as_ipython_shows_it(logs: LogWriter) -> None:
    log = logs.text(
        *REPORTS[:2],
        "Traceback (most recent call last)",
        "  File ~/src/train/loop.py:12, in run_epoch(model)",
        "       11 def run_epoch(model):",
        "  ---> 12     weights = table[index]",
        "",
        "  File /opt/lib/python3.11/site-packages/mlx/nn/base.py:9, in Module.get(self, name)",
        "  ----> 9     return self[name]",
        "IndexError: no such row",
    )
    (failure,) = log.notes.failures
    assert failure.place.endswith("src/train/loop.py:12")
    assert failure.functions == ("run_epoch", "get")
    assert str(finding(judge(log_failures, log), "traceback").where).endswith("train/loop.py:12")


TARGETLESS = "batches-without-targets"


@pytest.mark.parametrize(
    ("line", "hit"),
    [
        ("WARNING No valid targets in batch (all masked with -100)", True),
        ("warning: no supervised tokens in this batch, skipping", True),
        ("All labels are masked in batch 12", True),
        ("INFO no new tokens were added to the tokenizer", False),
        ("All tokens were trained on", False),
    ],
)
def test_what_a_trainer_warns_of(logs: LogWriter, line: str, hit: bool) -> None:
    outcome = judge(log_failures, logs.text(START, line, *REPORTS, line))
    assert severities(outcome) == ({TARGETLESS: "warning"} if hit else {})
    if hit:
        assert finding(outcome, TARGETLESS).measured["line"] == 2


def test_of_a_run_without_a_report_the_first_exception_counts(logs: LogWriter) -> None:
    lines = (*TRACE, "ArrowInvalid: cannot mix list", *TRACE, "TypeError: takes 2 arguments")
    before = finding(judge(log_failures, logs.text(START, *lines)), "traceback")
    assert "ArrowInvalid" in before.message
    after = finding(judge(log_failures, logs.text(START, *REPORTS, *lines)), "traceback")
    assert "TypeError" in after.message


HEAD = (
    "***** Running training *****",
    "  Num examples = 900",
    "  Num Epochs = 2",
    "  Total train batch size (w. parallel, distributed & accumulation) = 64",
    "  Total optimization steps = 28",
    "  Number of trainable parameters = 150,460,928",
)


def test_what_a_log_without_a_loss_says(logs: LogWriter) -> None:
    outcome = judge(log_failures, logs.text(*HEAD, "  4%|▎   | 1/28 [00:31<14:22, 31.96s/it]"))
    assert [seen.message for seen in outcome.seen] == [
        "No loss could be read in the log: it ends at step 1 of 28. It speaks of 900 rows to train "
        "on; 2 epochs; 64 rows an update; 150.5 M trained parameters."
    ]


#: As transformers shows it.
STEPS = (
    *(line.replace("28", "23") for line in HEAD),
    *(f"{{'loss': 2.0, 'grad_norm': 1.0, 'step': {at}}}" for at in (5, 10, 15, 20)),
)
SUMMARY = "{'train_runtime': 9.1, 'train_steps_per_second': 2.0, 'train_loss': 1.9}"


def with_bars(*bars: str) -> list[str]:
    """A report before each bar."""
    return [line for bar in bars for line in ("{'loss': 2.0, 'epoch': 0.1}", bar)]


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ((START, *REPORTS[:5]), "50 of 100"),
        ((START, *REPORTS), None),
        (STEPS[:-2], "10 of 23"),
        # The next report would have come after the end.
        (STEPS, None),
        ((*STEPS[:-2], SUMMARY), None),
        (
            with_bars(" 25%|#  | 25/100 [00:10<00:30]", " 50%|## | 50/100 [00:20<00:20]"),
            "50 of 100",
        ),
        (with_bars("100%|###| 99/100 [00:10<00:30]", "100%|###| 100/100 [00:20<00:20]"), None),
        # Of an evaluation, which was made twice, and of the rows.
        (with_bars("100%|###| 20/20 [00:10<00:30]", " 50%|## | 10/20 [00:20<00:20]"), None),
        (with_bars(*["Map:  50%|##   | 10/20 [00:20<00:20]"] * 2), None),
    ],
)
def test_an_early_end(logs: LogWriter, lines: Sequence[str], step: str | None) -> None:
    outcome = judge(log_failures, logs.text(*lines))
    assert ("ends-early" in severities(outcome)) is (step is not None)
    assert errors(outcome) == []
    assert step is None or step in finding(outcome, "ends-early").message


def test_an_earlier_start_that_failed(logs: LogWriter) -> None:
    log = logs.text(
        *HEAD,
        "ERROR - Training failed: 'ProgressCallback' object has no attribute 'on_train_begin'",
        "INFO - Training completed successfully",
    )
    (failed,) = judge(log_failures, log).findings
    assert failed.severity.value == "info"
    assert "and a later start follows" in failed.message


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("/env/bin/python3: can't open file '/a/b.py': [Errno 2] No such file", "script's path"),
        ("UnicodeEncodeError: 'charmap' codec can't encode character '\\u2764'", "PYTHONUTF8=1"),
    ],
)
def test_what_kept_a_training_from_beginning(logs: LogWriter, line: str, fix: str) -> None:
    (sign, *_) = judge(log_failures, logs.text(line)).findings
    assert fix in sign.fix


def test_what_breaks_off_behind_a_bar_at_its_end_is_a_later_program(logs: LogWriter) -> None:
    bars = [f"{at:3}%|####| {at}/100 [00:{at // 2:02}<00:00]" for at in (10, 50, 100)]
    rows = ["{'loss': 2.0, 'epoch': 0.1}", "{'loss': 1.0, 'epoch': 1.0}"]
    log = logs.text(bars[0], rows[0], bars[1], rows[1], bars[2], "ValueError: no such key")
    sign = finding(judge(log_failures, log), "traceback")
    assert sign.severity == "info"
    assert "after the training was over" in sign.message
