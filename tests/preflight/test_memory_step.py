"""A real training takes what was predicted."""

import json

import pytest

from fixtures.lab.preflight.memory import Configuration, predicted
from tests.conftest import ROOT
from tests.processes import python

# A process of its own: it forks the one that trains, and may not have computed before.
TRAIN = """
import json
from fixtures.lab.preflight.memory import Configuration, train
print("\\n" + json.dumps(train(Configuration("tiny", 3, 96, {"num_layers": 2}), (), 4)))
"""


@pytest.mark.slow
def test_the_peak_of_a_real_training() -> None:
    done = python("-c", TRAIN, cwd=ROOT, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert not isinstance(found, str), found
    configuration = Configuration("tiny", 3, 96, {"num_layers": 2})
    assert predicted(configuration, found["lengths"]) == pytest.approx(found["peak"], rel=0.15)
