"""Versions: their order, which of them a bug is in, and what a run tells of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from mlxdoctor.bugs.versions import Affected, KnownVersion, known_versions, parse_version
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from tests.conftest import RUNS


def version(text: str) -> Version:
    parsed = parse_version(text)
    assert parsed is not None
    return parsed


def exact(text: str) -> KnownVersion:
    return KnownVersion(None, None, version(text), "named in the log")


def between(since: str | None, below: str | None) -> KnownVersion:
    return KnownVersion(
        version(since) if since else None, version(below) if below else None, None, "by its keys"
    )


AFFECTED = Affected("mlx-lm", version("0.19.0"), version("0.21.5"))
OPEN = Affected("mlx-lm", version("0.28.3"), None)


@pytest.mark.parametrize(
    "text", ["", "main", "0.x", "d53e70f7", "0.31.3 beta", "1" + "a-" * 40, "1" * 65]
)
def test_what_is_no_version_is_none(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("0.18.2", False),
        ("0.19.0", True),
        ("0.19", True),
        ("0.20.6", True),
        ("0.21.4", True),
        ("0.21.4.post1", True),
        ("0.21.5", False),
        ("0.21.10", False),
        ("0.100.0", False),
        ("v0.21.4", True),
        ("0.21.4+cpu", True),
        # What comes before the release that fixed it is counted as having the bug.
        ("0.21.5.dev1", True),
        ("0.21.6.dev1", False),
        ("0.19.0rc1", False),
    ],
)
def test_which_versions_have_a_bug(text: str, holds: bool) -> None:
    assert AFFECTED.holds(exact(text)) is holds


@pytest.mark.parametrize(
    ("since", "below", "holds"),
    [
        ("0.19.0", "0.21.5", True),
        ("0.19.0", "0.22.0", None),
        ("0.21.5", None, False),
        ("0.20.0", None, None),
        (None, "0.19.0", False),
        (None, "0.21.0", None),
    ],
)
def test_bounds_decide_where_they_lie_within_or_without(
    since: str | None, below: str | None, holds: bool | None
) -> None:
    assert AFFECTED.holds(between(since, below)) is holds


def test_a_bug_without_a_fix_is_in_everything_later() -> None:
    assert OPEN.holds(exact("0.32.2")) is True
    assert OPEN.holds(exact("0.28.2")) is False
    assert OPEN.holds(between("0.32.0", None)) is True
    assert OPEN.holds(between("0.22.0", None)) is None
    assert OPEN.holds(between(None, "0.28.3")) is False
    assert OPEN.holds(None) is None


def of(folder: Path) -> KnownVersion | None:
    config = TrainingConfig.read(folder)
    log = next(one for one in (folder / "train.log", folder / "train.jsonl") if one.is_file())
    return known_versions(config, TrainingLog.read([log])).get("mlx-lm")


def test_the_form_of_the_log_tells_a_new_version() -> None:
    known = of(RUNS / "healthy-ordinary")
    assert known == KnownVersion(version("0.32.0"), None, None, "mlx_lm.lora prints a table")


def test_the_keys_tell_both_bounds_of_a_run_of_0_31_3() -> None:
    known = of(RUNS / "healthy-noisy-batch1")
    assert known is not None
    assert (known.since, known.below) == (version("0.31.2"), version("0.32.0"))
    assert str(known) == "0.31.2 or later, earlier than 0.32.0"


def test_a_later_key_that_the_user_wrote_does_not_make_the_version_later(
    copied: Callable[[str], Path],
) -> None:
    folder = copied("healthy-noisy-batch1")
    values = json.loads((folder / "adapter_config.json").read_text())
    del values["grad_accumulation_steps"]
    (folder / "adapter_config.json").write_text(json.dumps(values | {"trust_remote_code": True}))
    known = of(folder)
    assert known is not None
    assert (known.since, known.below) == (version("0.22.0"), version("0.28.3"))


@pytest.mark.parametrize("key", ["test_batches", "resume_adapter_file"])
def test_a_configuration_that_mlx_lm_did_not_write_tells_nothing(
    copied: Callable[[str], Path], key: str
) -> None:
    folder = copied("healthy-noisy-batch1")
    values = json.loads((folder / "adapter_config.json").read_text())
    del values[key]
    (folder / "adapter_config.json").write_text(json.dumps(values))
    assert of(folder) is None


def test_nor_does_that_of_a_trainer_which_grew_from_it(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-noisy-batch1")
    values = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(values | {"train_mode": "dpo"}))
    assert of(folder) is None


def test_a_version_that_the_log_names_comes_first(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-noisy-batch1")
    log = folder / "train.log"
    log.write_text("mlx-lm==0.31.3, mlx==0.24.0\n" + log.read_text())
    known = known_versions(TrainingConfig.read(folder), TrainingLog.read([log]))
    assert {name: one.exact for name, one in known.items()} == {
        "mlx": version("0.24.0"),
        "mlx-lm": version("0.31.3"),
    }
