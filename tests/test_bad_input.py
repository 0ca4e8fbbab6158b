"""Bad input gets one sentence that names the file, and exit code 2; what is readable is used."""

import json
from pathlib import Path

import pytest

from tests.conftest import HEALTHY, RUNS, Call, Copy


@pytest.fixture
def run(call: Call) -> Call:
    """Calls `mlxdoctor diagnose`."""

    def diagnose(*arguments: object) -> tuple[int, str, str]:
        code, out, err = call("diagnose", *arguments, "--stdout", "json")
        assert "Traceback" not in err
        return code, out, err

    return diagnose


DAMAGES = {
    "empty": b"",
    "binary": bytes(range(256)) * 64,
    "another kind": b"Dear diary, nothing was trained today.\n",
}


def damage(path: Path, how: str) -> None:
    whole = (HEALTHY / path.name).read_bytes()
    more = {"cut": whole[: len(whole) // 2], "Latin-1": "{'größe': 'ä'}".encode("latin-1")}
    path.write_bytes((DAMAGES | more)[how])


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("adapters.safetensors", how) for how in (*DAMAGES, "cut")),
        *(("train.log", how) for how in DAMAGES),
        *(("adapter_config.json", how) for how in (*DAMAGES, "cut", "Latin-1")),
    ],
)
def test_a_file_alone(run: Call, tmp_path: Path, name: str, how: str) -> None:
    damage(tmp_path / name, how)
    code, _, errors = run(tmp_path / name)
    assert (code, name in errors) == (2, True), errors
    assert len([line for line in errors.splitlines() if line.startswith("mlxdoctor:")]) == 1


@pytest.mark.parametrize(
    "name", ["adapters.safetensors", "train.log", "adapter_config.json", "generations.jsonl"]
)
@pytest.mark.parametrize("how", DAMAGES)
def test_the_rest_of_a_run_is_still_examined(run: Call, copied: Copy, name: str, how: str) -> None:
    folder = copied("healthy-ordinary")
    damage(folder / name, how)
    code, report, errors = run(folder, "--no-generate", "--base", RUNS.parent / "base")
    statuses = {outcome["status"] for outcome in json.loads(report)["outcomes"]}
    assert "passed" in statuses
    assert "crashed" not in statuses
    if name in ("adapters.safetensors", "adapter_config.json"):
        # By these names they are evidence; the others could be anything.
        assert (code, name in errors) == (2, True)


LOG = b"Iter 10: Train loss 2.0, It/sec 1.0\nIter 20: Train loss 1.5, It/sec 1.0\n"


@pytest.mark.parametrize("command", ["bisect --no-generate", "inspect"])
@pytest.mark.parametrize(
    ("named", "files"),
    [
        ("run", {}),
        (".", {}),
        (".", {"train.log": LOG}),
        ("train.log", {"train.log": LOG}),
        ("adapters.safetensors", {"adapters.safetensors": b""}),
        ("adapter.bin", {"adapter.bin": b"\x80\x04"}),
    ],
)
def test_what_holds_no_weights_is_one_sentence(
    call: Call, tmp_path: Path, command: str, named: str, files: dict[str, bytes]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / named
    code, out, err = call(*command.split(), path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mlxdoctor: ")
    assert path.name in err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train.py", "print(1)\n", "is source code; `mlxdoctor lint` says what is wrong"),
        ("log.jsonl", '{"current_steps": 5, "total_steps": 9}\n' * 9, "no loss in them"),
    ],
)
def test_a_file_of_which_more_can_be_said(
    run: Call, tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    code, _, errors = run(tmp_path / name)
    assert code == 2
    assert said in errors


@pytest.mark.parametrize("option", ["--log", "--base", "--data"])
def test_a_folder_where_a_file_belongs(run: Call, tmp_path: Path, option: str) -> None:
    assert run(RUNS / "healthy-ordinary", option, tmp_path, "--no-generate")[0] == 2
    code, _, errors = run(tmp_path)
    assert code == 2
    assert "has no adapter, no figures of a training, no rows and no model in it" in errors
    (tmp_path / "adapter_config.json").mkdir()
    assert run(tmp_path)[0] == 2
