"""A real training takes what was predicted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.lab.preflight.memory import predicted
from fixtures.lab.preflight.memory_configurations import Configuration, configurations

# A process of its own: it forks the one that trains, and may not have computed before.
TRAIN = """
import json
from fixtures.lab.preflight.memory_configurations import Configuration
from fixtures.lab.preflight.memory_measure import train
print("\\n" + json.dumps(train(Configuration("tiny", 3, 96, {"num_layers": 2}), (), 4)))
"""


@pytest.mark.slow
def test_the_peak_of_a_real_training() -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", TRAIN]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert not isinstance(found, str), found
    configuration = Configuration("tiny", 3, 96, {"num_layers": 2})
    assert predicted(configuration, found["lengths"]) == pytest.approx(found["peak"], rel=0.15)


def test_every_configuration_has_a_name_of_its_own_and_half_are_held_back() -> None:
    every = list(configurations())
    assert len({one.name for one, _ in every}) == len(every) >= 40
    held_back = sum(half == "held back" for _, half in every)
    assert held_back == pytest.approx(len(every) / 2, abs=2)
