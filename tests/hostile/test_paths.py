"""Names that lead elsewhere: out of the run, to a pipe, to a device, in a circle."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.cli import main
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.discovery import discover
from mlxdoctor.evidence.source import hash_file, read_bytes, require_file, stream_bytes
from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log
from mlxdoctor.gate.baseline import read_baseline
from mlxdoctor.gate.policy_file import find_policy, read_policy
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import using
from tests.conftest import RUNS, Call, Copy


def link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to(path.parent / "pipe")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


#: What is no file -> makes it.
MADE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to a pipe": link_to_pipe,
    "socket": listening,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "circle": lambda path: path.symlink_to(path),
}
READERS: tuple[Callable[[Path], object], ...] = (
    require_file,
    read_bytes,
    hash_file,
    looks_like_log,
    lambda path: TrainingLog.read([path]),
    Adapter.read,
    read_policy,
    read_baseline,
)


@pytest.mark.parametrize("make", [*MADE.values(), Path.mkdir], ids=[*MADE, "folder"])
def test_what_is_no_file_is_refused_and_blocks_nothing(
    tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of a socket may have about 100 characters.
    monkeypatch.chdir(tmp_path)
    path = Path("adapters.safetensors")
    make(path)
    for read in READERS:
        with pytest.raises(InputError):
            read(path)
    assert main(["diagnose", str(path), "--stdout", "json"]) == 2


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("name", ["train.log", "notes.json", "generations.jsonl", "extra.yaml"])
def test_a_run_with_such_a_file_in_it_is_examined(
    copied: Copy,
    make: Callable[[Path], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
) -> None:
    run = copied("healthy-ordinary")
    (run / name).unlink(missing_ok=True)
    monkeypatch.chdir(run)
    make(Path(name))
    outcomes = json.loads(call("diagnose", ".", "--no-generate", "--stdout", "json")[1])["outcomes"]
    assert any(one["status"] in {"passed", "found"} for one in outcomes)
    assert not any(one["status"] == "crashed" for one in outcomes)


@pytest.mark.parametrize(
    "named",
    ["/dev/zero", "../../../../etc", "/etc/passwd", "~nobody/x", "a\0b", "x" * 5000, "/", ".."],
)
def test_a_configuration_that_leads_elsewhere(tmp_path: Path, named: str, call: Call) -> None:
    places = dict.fromkeys(("model", "data", "resume_adapter_file", "config"), named)
    run = copied_run(tmp_path / "run", **places)
    report = json.loads(call("diagnose", run, "--no-generate", "--stdout", "json")[1])
    assert not any(one["status"] == "crashed" for one in report["outcomes"])
    assert any(one["status"] in {"passed", "found"} for one in report["outcomes"])
    shown = json.dumps(report)
    assert "root:" not in shown


def test_circles_of_folders_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").symlink_to(tmp_path)
    (tmp_path / "train.log").write_text((RUNS / "healthy-ordinary/train.log").read_text())
    assert [one.name for one in discover([tmp_path]).logs] == ["train.log"]


@pytest.mark.parametrize("limit", ["folder_entries=20", "folder_files=20"])
def test_a_huge_folder_is_looked_into_and_said(tmp_path: Path, limit: str) -> None:
    (tmp_path / "adapter_config.json").write_text('{"iters": 5}')
    for number in range(50):
        (tmp_path / f"z{number}.dat").touch()
    with using([limit]):
        run = Run.discover([tmp_path])
        assert limit.partition("=")[0] in str(run.unreadable[0])
    assert run.files.config is not None or "entries" in limit
    assert not Run.discover([tmp_path]).unreadable


@pytest.mark.parametrize("read", [read_policy, read_baseline])
def test_what_is_too_large_is_refused_by_its_size(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match=r"limit (policy|json)_bytes"):
        read(path)


def test_a_policy_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "mlxdoctor.toml").symlink_to("nowhere")
    policy = find_policy(tmp_path)
    with pytest.raises(InputError, match="no such policy"):
        read_policy(policy)


@pytest.mark.parametrize("size", [1 << 20, 6 << 20])
def test_a_file_that_shrinks_or_grows_while_it_is_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * (3 << 20))
    pieces = stream_bytes(path, "log_bytes")
    first = next(pieces)
    os.truncate(path, size)
    if size > 3 << 20:
        # It is read to where it ended.
        assert len(first) + sum(map(len, pieces)) == 3 << 20
        return
    with pytest.raises(InputError, match="became shorter"):
        list(pieces)


@pytest.mark.slow
def test_the_option_raises_a_limit_for_one_command(call: Call) -> None:
    command = ("diagnose", RUNS / "healthy-ordinary", "--no-generate", "--stdout", "json")
    code, _, err = call(*command, "--limit", "json_bytes=9")
    assert code == 2
    assert "over the limit json_bytes of 9; if you trust it, raise that with --limit" in err
    assert call(*command, "--fail-on", "never")[0] != 2
    code, _, err = call("inspect", RUNS / "healthy-ordinary", "--limit", "nonsense=9")
    assert (code, "text_bytes=" in err) == (2, True)
