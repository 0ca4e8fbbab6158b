import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxdoctor.safety.watched import MOST_TIMES, supervise

#: A watched program: what it does is appended. What it says goes to a file.
PROGRAM = """
import ctypes, os, sys, time
from mlxdoctor.safety.stages import Kind, Stage, StageStopped, attach, ended, models_run
assert attach()
def say(text):
    with open(sys.argv[1], "a") as file:
        file.write(text + "\\n")
"""
FILLS = "[bytearray(50_000_000) for _ in range(200)]"
CRASHES = "ctypes.string_at(0)"
HANGS = "sum(range(10**12))"


def supervised(folder: Path, code: str, limits: str = "") -> tuple[int | str, list[str]]:
    """What comes of a program, and what it said meanwhile."""
    said = folder / "said"
    said.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLXDOCTOR_LIMITS", limits)
        ended = supervise([sys.executable, "-c", PROGRAM + code, str(said)])
    return ended, said.read_text().splitlines()


SEGFAULT = "was stopped: a library crashed in it (SIGSEGV)"
#: How a program ends by itself: its code -> what comes of it.
ENDS = {
    "sys.exit(ended(0))": 0,
    "sys.exit(ended(130))": 130,
    # What happens after an honest end does not count.
    f"ended(1); {CRASHES}": 1,
}
DEATHS = {
    CRASHES: "a library crashed in it (SIGSEGV)",
    "os.abort()": "a library gave up in it (SIGABRT)",
    "os._exit(0)": "it ended the program without a word (exit status 0)",
    "os.kill(os.getpid(), 9)": "the system killed it, as it does when memory runs out",
}


@pytest.mark.parametrize(("code", "outcome"), ENDS.items())
def test_an_exit_code_is_passed_on(code: str, outcome: int, tmp_path: Path) -> None:
    assert supervised(tmp_path, code) == (outcome, [])


@pytest.mark.parametrize(("code", "why"), DEATHS.items())
def test_a_death_is_told_with_the_stage_that_it_came_in(
    code: str, why: str, tmp_path: Path
) -> None:
    program = f"""
with Stage("examining x", Kind.ITEM), Stage("x.py:f", Kind.CODE):
    {code}
"""
    assert supervised(tmp_path, program) == (f"x.py:f was stopped: {why}", [])


#: A stage of an item -> what is done in it, and whose stages are left out when it is begun again.
BEGUN_AGAIN = {
    "the stage that died": (
        f"""
for item in ("x", "y"):
    with Stage("examining " + item, Kind.ITEM):
        for name in ("one", "two"):
            try:
                with Stage(name):
                    if (item, name) == ("x", "two"):
                        {CRASHES}
                    say(name)
            except StageStopped as stopped:
                say(str(stopped))
sys.exit(ended(1))
""",
        1,
        ["one", "one", f"two {SEGFAULT}", "one", "two"],
    ),
    "an item that always dies": (
        f"""
say("begun")
try:
    with Stage("examining x", Kind.ITEM):
        for number in range(100):
            try:
                with Stage(f"stage {{number}}"):
                    {CRASHES}
            except StageStopped:
                pass
except StageStopped as stopped:
    say(str(stopped))
sys.exit(ended(2))
""",
        2,
        [*["begun"] * (MOST_TIMES + 1), f"stage 3 {SEGFAULT}"],
    ),
    "nothing outside an item": (
        f"""
say("begun")
with Stage("tokenizing a row", Kind.LIBRARY):
    {CRASHES}
""",
        f"tokenizing a row {SEGFAULT}",
        ["begun"],
    ),
    "all models": (
        f"""
with Stage("examining x", Kind.ITEM):
    for name in ("answers", "losses"):
        try:
            with Stage("examining the " + name):
                models_run()
                {CRASHES}
        except StageStopped as stopped:
            say(str(stopped))
sys.exit(ended(2))
""",
        2,
        [f"running the models {SEGFAULT.replace(':', ' in examining the answers:')}"] * 2,
    ),
}


@pytest.mark.parametrize("left_out", BEGUN_AGAIN)
def test_work_is_begun_again_without(left_out: str, tmp_path: Path) -> None:
    program, outcome, said = BEGUN_AGAIN[left_out]
    assert supervised(tmp_path, program) == (outcome, said)


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "limit", "why"),
    [
        (FILLS, "stage_bytes=300M", "it took over 0.31 GB of memory"),
        pytest.param(HANGS, "tokenizer_seconds=0.5", "it took over 0.5 s", marks=pytest.mark.slow),
    ],
)
def test_a_stage_that_takes_too_much_is_stopped_in_time(
    body: str, limit: str, why: str, tmp_path: Path
) -> None:
    program = f"""
with Stage("examining x", Kind.ITEM):
    with Stage("the reader", Kind.LIBRARY, limit="tokenizer_seconds"):
        # What sleeps is not busy.
        time.sleep({3.5 if body == HANGS else 0})
    try:
        with Stage("the tokenizer", Kind.LIBRARY, limit="tokenizer_seconds"):
            {body}
    except StageStopped as stopped:
        say(str(stopped))
sys.exit(ended(2))
"""
    name = limit.partition("=")[0]
    advice = f"if that is sound, raise the limit with --limit {name}=N"
    outcome = supervised(tmp_path, program, limit)
    assert outcome == (2, [f"the tokenizer was stopped: {why}; {advice}"])


@pytest.mark.slow
def test_models_and_code_of_ones_own_take_what_memory_they_like(tmp_path: Path) -> None:
    program = f"""
with Stage("examining x", Kind.ITEM):
    with Stage("x.py:f", Kind.CODE):
        kept = {FILLS.replace("200", "10")}
        time.sleep(0.5)
    with Stage("the check x"):
        models_run()
        kept = [kept, {FILLS.replace("200", "10")}]
        time.sleep(0.5)
sys.exit(ended(0))
"""
    # The run as a whole begins with no model, and may not grow meanwhile.
    assert supervised(tmp_path, program, "stage_bytes=100M")[0] == 0


ALONE = """
import os, sys
from mlxdoctor.safety.watched import supervise
print(os.getpid(), flush=True)
sys.exit(supervise([sys.executable, "-c", *sys.argv[1:]]))
"""


def started(folder: Path, code: str) -> subprocess.Popen[str]:
    """A supervisor in a process group of its own; what it supervises has said something."""
    said = folder / "said"
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, PROGRAM + code, str(said)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    patience = time.monotonic() + 60
    while not (said.is_file() and said.read_text().endswith("\n")):
        assert time.monotonic() < patience
        time.sleep(0.02)
    return process


WAITS = """
import signal
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
count = 0
try:
    say(str(os.getpid()))
    time.sleep(60)
except KeyboardInterrupt:
    count += 1
    try:
        time.sleep(1)
    except KeyboardInterrupt:
        count += 1
sys.exit(ended(100 + count))
"""


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [True, False])
def test_control_c_comes_once(whole_group: bool, tmp_path: Path) -> None:
    process = started(tmp_path, WAITS)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 101


@pytest.mark.slow
def test_a_second_control_c_ends_what_does_not_listen(tmp_path: Path) -> None:
    process = started(tmp_path, f"say(str(os.getpid())); {HANGS}")
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1.5)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_died_of(number: signal.Signals, tmp_path: Path) -> None:
    process = started(tmp_path, "say(str(os.getpid())); time.sleep(60)")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number


@pytest.mark.slow
def test_a_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    process = started(tmp_path, "say(str(os.getpid())); time.sleep(60)")
    process.kill()
    # The pipes are the child's as well: they end with it.
    process.communicate(timeout=30)
