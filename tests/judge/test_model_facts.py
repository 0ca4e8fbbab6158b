from pathlib import Path
from types import SimpleNamespace

import pytest

from mlxdoctor.judge.model_facts import ModelFacts, facts_of_name, model_facts
from tests.checks.data_evidence import config_of
from tests.checks.log_evidence import LogWriter

REPORT = "Iter 10: Train loss 2.0, It/sec 1.0"


@pytest.mark.parametrize(
    ("name", "parameters", "vocabulary"),
    [
        ("./models/llama-3.2-3b-instruct-mlx", 3e9, 128256),
        ("mlx-community/Llama-3.2-1B-Instruct-4bit", 1e9, 128256),
        ("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit", 8e9, 128256),
        ("Qwen2.5-0.5B-Instruct-4bit", 5e8, 151936),
        ("Qwen/Qwen2.5-7B-Instruct", 7e9, 152064),
        ("Qwen/Qwen3-30B-A3B", 3e10, 151936),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 1.35e8, 49152),
        ("phi-3-mini", 3.8e9, 32064),
        ("microsoft/Phi-3.5-mini-instruct", 3.8e9, 32064),
        ("microsoft/phi-4", 1.47e10, 100352),
        ("mistral-7b", 7e9, 32000),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7e9, 32768),
        ("mistralai/Mistral-7B-v0.3", 7e9, 32768),
        ("mlx-community/Mixtral-8x7B-Instruct-v0.1", 4.67e10, 32000),
        ("gemma-2-2b", 2e9, 256000),
        ("google/gemma-7b-it", 7e9, 256000),
        ("google/gemma-3-270m-it", 2.7e8, 262144),
        ("meta-llama/Llama-2-13b-hf", 1.3e10, 32000),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1.1e9, 32000),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.5e9, 151936),
        ("gpt2", 1.24e8, 50257),
        (
            "/home/me/.cache/huggingface/hub/models--meta-llama--Llama-3.2-3B/snapshots/0a1b2c",
            3e9,
            128256,
        ),
        # What is no size, and what is no name.
        ("mlx-community/mymodel-4bit", None, None),
        ("/home/me/7b-runs/base", None, None),
        ("base", None, None),
        ("", None, None),
        ("open_llama_3b_v2", 3e9, None),
    ],
)
def test_what_a_name_says(name: str, parameters: float | None, vocabulary: int | None) -> None:
    facts = facts_of_name(name)
    assert (facts.parameters, facts.vocabulary) == (parameters, vocabulary)
    assert facts.size_from == ("its name" if parameters else "")


def test_the_log_counts_better_than_the_name_and_the_files_best(
    tmp_path: Path, logs: LogWriter
) -> None:
    config = config_of(tmp_path, model="models/llama-3.2-3b")
    log = logs.text(REPORT, "Trainable parameters: 0.216% (6.947M/3212.750M)")
    base = SimpleNamespace(parameter_count=5_000, vocab_size=96)
    assert model_facts(config, log, None) == ModelFacts(3.21275e9, "the log", 128256)
    assert model_facts(config, log, base) == ModelFacts(5e3, "its files", 96)
    command = "python -m mlx_lm.lora --model mlx-community/Qwen2.5-0.5B-Instruct-4bit --train"
    assert model_facts(None, logs.text(REPORT, command), None).parameters == 5e8
    for nothing in (None, logs.text(REPORT)):
        assert model_facts(None, nothing, None) == ModelFacts()


@pytest.mark.parametrize("piece", ["models--", "-", "1", "a_1b-"])
def test_a_name_without_end_takes_no_longer(piece: str) -> None:
    assert facts_of_name("models" + piece * 300_000).vocabulary is None
