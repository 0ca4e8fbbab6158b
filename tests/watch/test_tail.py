"""Text as it comes: files that grow, vanish, are cut or replaced; pipes; odd bytes."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.tail import MAX_LINE, FileTail, Piece, PipeTail

Opened = Callable[[Path], FileTail]


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(FileTail(path)))


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_whole_lines_only_and_each_once(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    append(path, "one\ntw")
    tail = opened(path)
    assert tail.read() == Piece("one\n", True)
    assert tail.read() is None
    append(path, "o\nthree")
    assert tail.read() == Piece("two\n", False)
    assert tail.read() is None
    assert tail.rest() == "three"


def test_a_file_that_is_not_there_yet(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    tail = opened(path)
    assert tail.is_missing
    assert tail.read() is None
    append(path, "one\n")
    assert tail.read() == Piece("one\n", True)
    assert not tail.is_missing


def test_a_file_that_is_cut_begins_anew(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    append(path, "one\ntwo\n")
    tail = opened(path)
    tail.read()
    path.write_text("new\n")
    assert tail.read() == Piece("new\n", True)


def test_a_file_that_is_replaced_is_read_to_its_end_first(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    append(path, "one\n")
    tail = opened(path)
    tail.read()
    append(path, "last\n")
    path.rename(tmp_path / "a.log.1")
    assert tail.read() == Piece("last\n", False)
    assert tail.read() is None
    append(path, "new\n")
    assert tail.read() is None
    assert tail.read() == Piece("new\n", True)


def test_rewritten_lines_are_told_as_they_come(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    append(path, "10%\r20%\r30%")
    tail = opened(path)
    piece = tail.read()
    assert piece is not None
    assert piece.text == "10%\r20%\r"


def test_bytes_that_are_cut_in_a_character(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    append(path, "loss ▼\n".encode()[:6])
    tail = opened(path)
    assert tail.read() is None
    append(path, "loss ▼\n".encode()[6:] + b"bad \xff byte\n")
    piece = tail.read()
    assert piece is not None
    assert piece.text == "loss ▼\nbad \ufffd byte\n"


def test_wide_characters_with_a_mark(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    append(path, "one\n".encode("utf-16"))
    assert opened(path).read() == Piece("one\n", True)


def test_an_endless_line_is_dropped_and_costs_no_memory(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "a.log"
    append(path, b"x" * (MAX_LINE + 10))
    tail = opened(path)
    assert tail.read() is None
    append(path, b"y" * MAX_LINE + b"\nnext\n")
    piece = tail.read()
    assert piece is not None
    assert piece.text == "next\n"


def test_what_is_no_log_is_refused(tmp_path: Path, opened: Opened) -> None:
    with pytest.raises(InputError, match="folder"):
        FileTail(tmp_path)
    binary = tmp_path / "a.bin"
    binary.write_bytes(b"\0\1\2\n")
    with pytest.raises(InputError, match="binary"):
        opened(binary).read()


def test_a_named_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        FileTail(path)


def test_a_pipe_until_it_is_closed() -> None:
    reader, writer = os.pipe()
    tail = PipeTail(reader)
    assert tail.read() is None
    os.write(writer, b"one\ntw")
    assert tail.read() == Piece("one\n", True)
    os.write(writer, b"o\n")
    assert tail.read() == Piece("two\n", False)
    assert not tail.is_closed
    os.close(writer)
    assert tail.read() is None
    assert tail.is_closed
    os.close(reader)
