"""What an alarm does: a training is ended politely."""

import os
import signal
import time

import psutil
import pytest

from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.process import find_process, is_alive, stop
from tests.conftest import Start

WAITS = "print('ready', flush=True); import time; time.sleep(60)"
# A shell's background job ignores SIGINT, and so would all that it starts.
POLITE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);" + WAITS
DEAF_TO_INT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);" + WAITS
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + DEAF_TO_INT


@pytest.mark.parametrize(
    ("code", "grace", "said", "number"),
    [
        (POLITE, 3.0, "SIGINT", signal.SIGINT),
        (DEAF_TO_INT, 1.0, "SIGTERM", signal.SIGTERM),
        (DEAF, 0.3, "left alone", None),
    ],
)
def test_it_ends_or_not_and_the_sentence_says_how(
    start: Start, code: str, grace: float, said: str, number: signal.Signals | None
) -> None:
    process = start(code)
    ended, sentence = stop(find_process(process.pid), grace=grace)
    assert (ended, said in sentence) == (number is not None, True)
    assert (-process.wait(timeout=30) if ended else process.poll()) == number


def test_one_that_ended_is_not_signalled(start: Start) -> None:
    process = start(POLITE)
    target = find_process(process.pid)
    assert is_alive(target)
    process.terminate()
    deadline = time.monotonic() + 30
    # Nobody has waited for it yet: a zombie, whose number still exists.
    while is_alive(target) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stop(target) == (True, f"process {process.pid} had ended already")


def test_another_process_with_the_same_number_is_not_the_target(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(POLITE)
    other = find_process(process.pid)
    # What psutil says of a number that was given away again.
    monkeypatch.setattr(psutil.Process, "is_running", lambda _: False)
    assert stop(other) == (True, f"process {process.pid} had ended already")
    assert process.poll() is None


@pytest.mark.parametrize(
    ("pid", "problem"),
    [
        (0, "not the process of a training"),
        (1, "not the process of a training"),
        (os.getpid(), "the watch itself"),
        (os.getppid(), "the watch itself"),
        (2**22 + 1, "there is no process"),
    ],
    # Numbers that differ in every worker of pytest-xdist are no names of tests.
    ids=["nothing", "init", "itself", "parent", "nobody"],
)
def test_what_is_no_training_is_refused(pid: int, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        find_process(pid)
