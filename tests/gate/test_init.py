import shutil
from pathlib import Path

import pytest

from mlxdoctor.gate.init import policy_text, required_checks
from mlxdoctor.safety.errors import InputError
from tests.conftest import HEALTHY, RUNS, Copy
from tests.gate.given import policy


@pytest.mark.slow
def test_a_check_is_required_only_if_it_ran_on_all(copied: Copy) -> None:
    bare = copied("healthy-ordinary")
    (bare / "generations.jsonl").unlink()
    assert "token-collapse" in required_checks([str(HEALTHY)])[1]
    assert "token-collapse" not in required_checks([str(HEALTHY), str(bare)])[1]


def test_nor_of_one_that_cannot_be_judged_or_read(tmp_path: Path, copied: Copy) -> None:
    data = tmp_path / "data"
    shutil.copytree(RUNS.parent / "data" / "geography", data)
    with pytest.raises(InputError, match=r"no healthy run \(Inconclusive"):
        required_checks([str(data)])
    cut = copied("healthy-ordinary")
    (cut / "adapters.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="name runs that can be read"):
        required_checks([str(cut)])
    with pytest.raises(InputError, match="name them with a glob"):
        required_checks([str(RUNS)])


def test_the_examples_in_it_are_valid_once_their_hashes_are_gone(tmp_path: Path) -> None:
    text = policy_text(["runs/a"], ["loss-trend"])
    assert "#   runs/a\n" in text
    examples = "\n".join(
        line.removeprefix("# ")
        for line in text[text.index("# [[override]]") :].splitlines()
        if line.startswith("# ") and not line.startswith(("# A ", "# Other"))
    )
    read = policy(tmp_path, examples)
    assert len(read.overrides) == len(read.ignores) == 1


def test_a_name_cannot_break_out_of_its_comment(tmp_path: Path) -> None:
    text = policy_text(['a\nfail-on = "never"'], ())
    assert 'fail-on = "never"' not in [line.strip() for line in text.splitlines()]
    assert policy(tmp_path, text).rules.require == ()
