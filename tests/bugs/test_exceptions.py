"""What exceptions mean: every one that mlx-lm raises while it loads and trains is known."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from mlxdoctor.bugs.exceptions import known_exceptions, meaning_of
from mlxdoctor.evidence.logs.series import LogFailure
from tests.conftest import check_called

MODULES = (
    "lora",
    "utils",
    "tuner/trainer",
    "tuner/datasets",
    "tuner/utils",
    "tuner/dora",
    "tuner/callbacks",
)


def failure(text: str, code: str = "", functions: tuple[str, ...] = ()) -> LogFailure:
    return LogFailure(1, "traceback", text, code=code, functions=functions)


def raised(module: str) -> Iterator[str]:
    """What each `raise` of a module of mlx-lm prints, with 7 for whatever it fills in."""
    package = find_spec("mlx_lm")
    tree = ast.parse((Path(package.origin).parent / f"{module}.py").read_text())
    texts = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            given = node.exc.args[0]
            given = texts.get(given.id, given) if isinstance(given, ast.Name) else given
            yield f"{ast.unparse(node.exc.func)}: {written(given)}"


def written(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(written, node.values))
    if isinstance(node, ast.BinOp):
        return written(node.left) + written(node.right)
    return str(node.value) if isinstance(node, ast.Constant) else "7"


@pytest.mark.parametrize("module", MODULES)
def test_every_exception_of_mlx_lm_is_known(module: str) -> None:
    texts = list(raised(module))
    assert texts
    assert [text for text in texts if meaning_of(failure(text)) is None] == []


def test_every_entry_is_reported_and_its_sentences_can_be_filled() -> None:
    codes = {code.split(".")[1] for code in check_called("log-failures").symptoms}
    for known in known_exceptions().values():
        assert known.finding in codes
        assert known.type or known.message is not None
        names = known.message.groupindex if known.message is not None else {}
        filled = dict.fromkeys(names, "x")
        assert known.says.format(**filled).endswith("."), known.id
        assert not known.remedy.format(**filled).endswith("."), known.id


#: What is printed -> the finding, and words of what is said or advised.
SAID = {
    "KeyError: 'messages'": ("rows-refused", "'messages'"),
    "jinja2.exceptions.TemplateError: Conversation roles must alternate "
    "user/assistant/user/assistant/...": ("rows-refused", "alternate"),
    "ValueError: Cannot use chat template functions because tokenizer.chat_template is "
    "not set and no template argument was passed!": ("template-missing", "instruct version"),
    "RuntimeError: [metal::malloc] Attempting to allocate 77309411328 bytes which is "
    "greater than the maximum allowed buffer size of 37795712205 bytes.": (
        "out-of-memory",
        "batch_size",
    ),
    "ValueError: [matmul] Last dimension of first input with shape (1,7,96) must match "
    "second to last dimension of second input with shape (64,8).": ("shapes-disagree", "rank"),
    "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge": (
        "model-refused",
        "full size",
    ),
    "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6)": (
        "model-refused",
        "ask for access",
    ),
    "TypeError: 'dict' object is not callable": ("code-error", "value_and_grad"),
    "ModuleNotFoundError: No module named 'wandb'": ("environment-lacking", "report_to"),
    "RuntimeError: Loss is NaN at step 12, stopping": ("loss-refused", "learning rate"),
}


@pytest.mark.parametrize("text", SAID)
def test_what_is_said_of_it(text: str) -> None:
    finding, words = SAID[text]
    meaning = meaning_of(failure(text))
    assert meaning.finding == finding
    assert words in f"{meaning.says} {meaning.remedy}"


def test_a_function_or_the_source_line_can_decide() -> None:
    text = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert meaning_of(failure(text)) is None
    assert meaning_of(failure(text, functions=("main", "load_subset"))) is not None
    text = "ValueError: too many values to unpack (expected 2)"
    assert meaning_of(failure(text, code="a, b = sizes")) is None
    known = meaning_of(failure(text, code="for name, p in tree_flatten(params):"))
    assert known.finding == "code-error"


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: no such answer",
        "KeyError: 'accuracy'",
        "AttributeError: 'NoneType' object has no attribute 'split'",
        "Traceback (most recent call last)",
    ],
)
def test_what_is_not_known_is_left_alone(text: str) -> None:
    assert meaning_of(failure(text)) is None
