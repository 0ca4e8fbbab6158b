"""A real training takes what was predicted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.lab.preflight.memory import Configuration, predicted

# A process of its own: it forks the one that trains, and may not have computed before.
TRAIN = """
import json
from fixtures.lab.preflight.memory import Configuration, train
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
