"""Signatures of known bugs in the log's count of trained tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.bugs.counts import unsorted_batches
from mlxdoctor.bugs.sightings import BugLimits
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding, Severity
from tests.checks.data_evidence import BASE, DATA, config_of, log_of
from tests.checks.known_bug_runs import as_of_0_20, at_work, change, findings, outcome
from tests.conftest import RUNS, check_called
from tests.given import Given


@pytest.mark.parametrize("name", ["healthy-ordinary", "healthy-noisy-batch1", "overfitting"])
def test_the_padding_token_is_in_the_count_of_mlx_lm(name: str) -> None:
    assert "padding-target" in at_work(RUNS / name)


def test_it_is_not_in_that_of_a_trainer_without_it(copied: Callable[[str], Path]) -> None:
    """The same log, less one token a row."""
    folder = copied("healthy-noisy-batch1")
    log = folder / "train.log"
    lines = []
    for line in log.read_text().splitlines():
        head, found, tail = line.partition("Trained Tokens ")
        if found:
            iteration = int(line.split("Iter ")[1].split(":")[0])
            count, _, rest = tail.partition(",")
            line = f"{head}{found}{int(count) - iteration},{rest}"  # noqa: PLW2901
        lines.append(line)
    log.write_text("\n".join(lines) + "\n")
    assert "padding-target" not in at_work(folder)


def test_a_count_that_neither_way_explains_shows_nothing(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-noisy-batch1")
    log = folder / "train.log"
    text = log.read_text()
    log.write_text(text.replace("Trained Tokens ", "Trained Tokens 9"))
    assert text != log.read_text()
    assert "padding-target" not in at_work(folder)


def test_one_report_that_neither_way_explains_is_enough_to_doubt(
    copied: Callable[[str], Path],
) -> None:
    """The count goes on from a number of its own after half of the run."""
    folder = copied("healthy-noisy-batch1")
    log = folder / "train.log"
    lines = log.read_text().splitlines()
    last = max(i for i, line in enumerate(lines) if "Trained Tokens " in line)
    head, found, tail = lines[last].partition("Trained Tokens ")
    count, _, rest = tail.partition(",")
    lines[last] = f"{head}{found}{int(count) + 3000},{rest}"
    log.write_text("\n".join(lines) + "\n")
    assert "padding-target" not in at_work(folder)


def test_rows_without_an_end_token_run_into_the_padding(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    """As a run of mlx_lm.lora answered whose template ends answers with nothing: `.!.!.!`"""
    folder, base = _without_ends(copied, tmp_path)
    found = findings(folder, base=base)["padding-target"]
    assert found.severity is Severity.WARNING
    assert (found.measured["affected_answers"], found.measured["answers"]) == (16, 16)


@pytest.mark.slow
@pytest.mark.parametrize("change_to", ["few", "base", "first"])
def test_answers_that_do_not_run_into_it_leave_a_note(
    copied: Callable[[str], Path], tmp_path: Path, change_to: str
) -> None:
    folder, base = _without_ends(copied, tmp_path)
    path = folder / "generations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        if change_to == "few" and number >= 7:
            row["tuned_tokens"] = [one or 13 for one in row["tuned_tokens"]]
        elif change_to == "base":
            row["base_tokens"] = [*row["base_tokens"], 0]
        elif change_to == "first":
            row["tuned_tokens"] = [0, *row["tuned_tokens"]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {one.code: one.severity for one in outcome(folder, base=base).findings}
    assert found["known-bugs.at-work"] is Severity.INFO
    assert "known-bugs.padding-target" not in found


def test_answers_with_token_zero_mean_nothing_where_rows_end_with_an_end_token(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, _ = _without_ends(copied, tmp_path)
    shutil.copy(RUNS / "healthy-ordinary" / "train.log", folder)
    assert "padding-target" in at_work(folder)
    assert "padding-target" not in findings(folder)


def _without_ends(copied: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path]:
    base = tmp_path / "base"
    shutil.copytree(BASE, base)
    template = base / "chat_template.jinja"
    template.write_text(
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
        "+ message['content'] }}{% if message['role'] != 'assistant' %}{{ '<|im_end|>\\n' }}"
        "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    folder = copied("healthy-ordinary")
    rows = build(
        Dataset.read(DATA / "geography"), Tokenizer.read(base), config_of(tmp_path, batch_size=4)
    )
    epoch = sum(row.count() for row in rows.rows)
    (folder / "train.log").write_text(
        f"Iter {len(rows.batches)}: Train loss 0.5, Trained Tokens {epoch}, Peak mem 1.0 GB\n"
    )
    path = folder / "generations.jsonl"
    answers = [json.loads(line) for line in path.read_text().splitlines()]
    for answer in answers:
        answer["tuned_tokens"] = [*answer["tuned_tokens"][:-1], 0, 13, 0, 13]
    path.write_text("".join(json.dumps(one) + "\n" for one in answers))
    return folder, base


def test_the_header_of_masked_answers_in_the_count(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    """As mlx-lm 0.28.3 counts 100 iterations of this data: see the numbers of a real run."""
    folder = copied("healthy-noisy-batch1")
    change(folder, batch_size=4, iters=100, mask_prompt=True, clear_cache_threshold=None)
    log = folder / "train.log"
    line = "Iter {}: Train loss 0.5, Trained Tokens {}, Peak mem 1.0 GB\n"
    log.write_text(line.format(50, 8998) + line.format(100, 17996))
    assert at_work(folder) == ("mask-prompt-header",)
    log.write_text(line.format(50, 7398) + line.format(100, 14796))
    assert at_work(folder) == ("padding-target",)


def test_a_generation_prompt_after_each_row_in_the_count(
    copied: Callable[[str], Path],
) -> None:
    """As mlx-lm 0.19.0 counted 100 iterations of this data, sorted by length."""
    of_0_20 = as_of_0_20(copied("healthy-noisy-batch1"))
    change(of_0_20, batch_size=4, iters=100, num_layers=4)
    log = of_0_20 / "train.log"
    line = "Iter {}: Train loss 0.5, Trained Tokens {}, Peak mem 1.0 GB\n"
    log.write_text(line.format(50, 13238) + line.format(100, 26476))
    assert at_work(of_0_20) == ("generation-prompt-appended",)
    log.write_text(line.format(50, 11466) + line.format(100, 22932))
    assert at_work(of_0_20) == ("padding-target",)


@pytest.fixture
def mixed(tmp_path: Path) -> SupervisedRows:
    """Rows of very different lengths, in an order that has nothing to do with them."""
    generator = np.random.default_rng(5)
    data = tmp_path / "mixed"
    data.mkdir()
    rows = []
    for _ in range(160):
        words = " ".join(["wool"] * int(generator.integers(2, 90)))
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": "What?"},
                    {"role": "assistant", "content": words},
                ]
            }
        )
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return build(Dataset.read(data), Tokenizer.read(BASE), config_of(tmp_path, batch_size=4))


def batches_of_mlx_lm(rows: SupervisedRows, *, sort: bool, iterations: int) -> list[int]:
    """Trained tokens up to each iteration, by mlx-lm's own batches."""
    from mlx_lm.tuner.trainer import CacheDataset, iterate_batches

    class Rows(CacheDataset):
        def itemlen(self, idx: int) -> int:
            return len(self[idx][0]) if sort else super().itemlen(idx)

    class Processed(list[Any]):
        def process(self, item: Any) -> Any:
            return item["tokens"], 0

    dataset = Rows(Processed({"tokens": row.tokens.tolist()} for row in rows.rows))
    batches = iterate_batches(dataset, rows.batch_size, rows.max_seq_length, loop=True, seed=3)
    counts = []
    for _, (_, lengths) in zip(range(iterations), batches, strict=False):
        # Targets 1 to `length`, the padding token among them.
        counts.append(int(lengths[:, 1].sum().item()))
    return np.cumsum(counts).tolist()


@pytest.mark.parametrize(("sort", "seen"), [(False, True), (True, False)])
def test_the_order_of_mlx_lms_batches_shows_in_the_counts(
    mixed: SupervisedRows, tmp_path: Path, sort: bool, seen: bool
) -> None:
    counts = batches_of_mlx_lm(mixed, sort=sort, iterations=100)
    at = list(range(2, 101, 2))
    log = log_of(trained_tokens=(at, [counts[one - 1] for one in at]), train_loss=(at, [1.0] * 50))
    found = {
        one.code: one
        for one in check_called("known-bugs")
        .run(Given(mixed, log, config_of(tmp_path, batch_size=4)))
        .findings
    }
    if not seen:
        assert "length-sort" not in found.get("known-bugs.at-work", _NOTHING).measured["bugs"]  # type: ignore[operator]
        return
    measured = found["known-bugs.at-work"].measured
    assert "length-sort" in measured["bugs"]  # type: ignore[operator]
    assert 0.2 < float(measured["length-sort.padding"]) < 0.6  # type: ignore[arg-type]
    assert float(measured["length-sort.padding_if_sorted"]) < 0.25  # type: ignore[arg-type]


_NOTHING = Finding("known-bugs.at-work", Severity.INFO, "", {"bugs": ()})


def test_few_reports_do_not_show_the_order(mixed: SupervisedRows) -> None:
    counts = batches_of_mlx_lm(mixed, sort=False, iterations=14)
    at = list(range(2, 15, 2))
    log = log_of(trained_tokens=(at, [counts[one - 1] for one in at]), train_loss=(at, [1.0] * 7))
    seen = unsorted_batches(mixed, log, BugLimits(reports=7, decided=0.5))
    assert seen is not None
    assert seen.reports == 7
    assert unsorted_batches(mixed, log, BugLimits(reports=8, decided=0.5)) is None
    assert unsorted_batches(mixed, log, BugLimits(reports=7, decided=seen.evidence + 0.1)) is None
