from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import looks_like_log
from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES, RUNS
from tests.evidence.log_tables import CLASSIC, Write, read, same, table


def test_a_second_run_is_a_second_segment(write: Write) -> None:
    path = write(CLASSIC + CLASSIC.replace("3000", "40").replace("2.363", "9.5"))
    log = read(path)
    assert [one.announced_iterations for one in log.segments] == [3000, 40]
    assert [one.first_line for one in log.segments] == [2, 5]
    same(table(path, "train_loss", 0), {10: 2.363})
    same(table(path, "train_loss", 1), {10: 9.5})


def test_versions(write: Write) -> None:
    log = read(write("mlx-lm==0.22.0\nmlx 0.20.1\n" + CLASSIC))
    assert log.notes.versions == {"mlx-lm": "0.22.0", "mlx": "0.20.1"}


NOT_LOGS = {
    "train.jsonl": '{"messages": [{"role": "user", "content": "Iter 10: Train loss 2.3"}]}\n' * 9,
    "text.jsonl": '{"text": "loss 3"}\n' * 9,
    "generations.jsonl": '{"prompt": "a", "base": "b", "tuned": "c"}\n' * 9,
    "evaluation.json": '{"loss": 2.0, "perplexity": 7.66}',
    "adapter_config.json": '{\n "fine_tune_type": "lora",\n "iters": 9,\n "learning_rate": 1e-5}',
    "README.md": "The loss was 2.5 at iter 300.\nAfter iter 300 the loss went to 1.2.\n",
    "data.csv": "name,age\nbob,3\n",
}


@pytest.mark.parametrize("name", sorted(NOT_LOGS))
def test_what_is_not_a_log(write: Write, name: str) -> None:
    path = write(NOT_LOGS[name], name)
    assert not looks_like_log(path)
    with pytest.raises(InputError, match="no report on training; understood are"):
        read(path)


def test_fixture_files_that_are_not_logs() -> None:
    for path in FIXTURES.glob("data/*/*.jsonl"):
        assert not looks_like_log(path), path
    for path in RUNS.glob("*/generations.jsonl"):
        assert not looks_like_log(path), path
    for path in RUNS.glob("*/*.json"):
        assert not looks_like_log(path), path


def test_binary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"\0\1\2" * 100)
    assert not looks_like_log(path)
    with pytest.raises(InputError, match="binary"):
        read(path)
