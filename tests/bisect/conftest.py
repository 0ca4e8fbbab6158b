from pathlib import Path

import pytest

from tests.reproduce.real import trained

#: The rate leaps after this iteration, in a run of so many.
LEAP, ITERATIONS, EVERY = 30, 60, 10


@pytest.fixture(scope="session")
def broken_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA run on the fixtures' model: sound until iteration 30, then at 40 times the rate."""
    return trained(
        tmp_path_factory.mktemp("broken") / "adapters",
        seed=5,
        batch_size=2,
        iters=ITERATIONS,
        lr_schedule={"name": "step_decay", "arguments": [5e-4, 40.0, LEAP]},
        steps_per_report=5,
        steps_per_eval=30,
        val_batches=4,
        save_every=EVERY,
    )
