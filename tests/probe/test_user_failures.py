"""Code of a user's that raises, or ends the program: what is said, and which exit code."""

from pathlib import Path

import pytest

from mlxdoctor.safety.user_failure import UserCodeError, failure_of, kept_running
from tests.conftest import Call

TRAINER = """\
import sys
from fixtures.trainers.common import answer_loss, load_with_adapter, next_token_batch

def helper():
    return [].size

def raises():
    return helper()

def leaves():
    sys.exit(0)

def exits(code):
    raise SystemExit(code)

def _with(loss, step=None):
    model, tokenizer = load_with_adapter()
    return dict(model=model, loss_fn=loss, batch=next_token_batch(tokenizer), step=step)

def loss_raises():
    def loss(model, inputs, targets):
        return answer_loss(model, inputs, targets) + helper()
    return _with(loss)

def loss_leaves():
    def loss(model, inputs, targets):
        sys.exit()
    return _with(loss)

def step_raises():
    def step(model, inputs, targets):
        {}["rate"]
    return _with(answer_loss, step)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(TRAINER)
    return path


def line_of(text: str) -> int:
    return next(at for at, line in enumerate(TRAINER.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("name", "said", "line"),
    [
        ("raises", "AttributeError: “'list' object has no attribute 'size'”", "return [].size"),
        ("leaves", "ends the program (SystemExit: 0", "sys.exit(0)"),
    ],
)
def test_parts_that_fail(file: Path, call: Call, name: str, said: str, line: str) -> None:
    """The line that is named is the user's own."""
    code, _, shown = call("probe", f"{file}:{name}")
    assert (code, said in shown) == (2, True)
    assert f"at mine.py:{line_of(line)}" in shown
    assert "Traceback" not in shown


@pytest.mark.slow
def test_losses_and_steps_that_fail(file: Path, call: Call) -> None:
    code, shown, _ = call("probe", f"{file}:loss_raises")
    assert code == 1
    assert f"at mine.py:{line_of('return [].size')}" in " ".join(shown.split())
    code, shown, _ = call("probe", f"{file}:step_raises")
    assert (code, "KeyError: “'rate'”" in " ".join(shown.split())) == (1, True)
    code, _, said = call("probe", f"{file}:loss_leaves")
    assert code == 2
    assert "the training step ends the program (SystemExit: None, at mine.py:" in said


def test_a_file_that_cannot_be_imported(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def parts(:\n    pass\n")
    code, _, said = call("probe", f"{path}:parts")
    assert (code, "at broken.py:1)" in said) == (2, True)
    path.write_text("import sys\nsys.exit(3)\n")
    code, _, said = call("probe", f"{path}:parts")
    assert (code, "ends the program (SystemExit: 3, at broken.py:2)" in said) == (2, True)


def test_an_error_without_a_message() -> None:
    with pytest.raises(UserCodeError) as caught, kept_running("it"):
        raise SystemExit
    assert "it ends the program (SystemExit: None" in str(caught.value)
    assert failure_of(KeyError()).what == "KeyError"
    assert failure_of(KeyError()).place == ""
