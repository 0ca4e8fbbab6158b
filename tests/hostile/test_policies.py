"""Policies and baselines that are pipes, endless, or as large as a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.gate.baseline import read_baseline
from mlxdoctor.gate.policy_file import find_policy, read_policy
from mlxdoctor.safety.errors import InputError

READERS: tuple[Callable[[Path], Any], ...] = (read_policy, read_baseline)


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_is_refused_before_it_is_opened(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    pipe, endless = tmp_path / "pipe", tmp_path / "endless"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        with pytest.raises(InputError, match="is not a regular file"):
            read(path)


@pytest.mark.parametrize("read", READERS)
def test_what_is_too_large_is_refused_by_its_size(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match=r"limit (policy|json)_bytes"):
        read(path)


def test_a_policy_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "mlxdoctor.toml").symlink_to("nowhere")
    found = find_policy(tmp_path)
    assert found is not None
    with pytest.raises(InputError, match="no such policy"):
        read_policy(found)
