"""Sound inputs that fuzzing starts from: pieces of the fixture runs, and small files like them."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixtures.trainers import twins
from mlxdoctor.evidence.logs.log_format import LogFormat, formats
from mlxdoctor.evidence.tokenizer import Tokenizer
from tests.checks.data_evidence import chat
from tests.conftest import BASE, FIXTURES
from tests.weight_files import packed

#: Bytes of a fixture file that are enough to hold every kind of line it has.
_PIECE = 3000


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.read(BASE)


def _ramp(*shape: int, dtype: str = "f4") -> NDArray[Any]:
    return np.linspace(-1, 1, int(np.prod(shape))).astype(dtype).reshape(shape)


def _factors(name: str, a: tuple[str, int, int], b: tuple[str, int, int]) -> bytes:
    """Two layers; a factor is its role and its shape."""
    layers = [(layer, *factor) for layer in (0, 1) for factor in (a, b)]
    return packed({name.format(layer, role): _ramp(*shape) for layer, role, *shape in layers})


def small_adapter() -> bytes:
    return _factors("model.layers.{}.self_attn.q_proj.lora_{}", ("a", 4, 2), ("b", 2, 4))


def small_peft() -> bytes:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    return packed({name.format("A"): _ramp(2, 4), name.format("B"): _ramp(4, 2)}, {"format": "pt"})


def adapters() -> Sequence[bytes]:
    dora = {
        "model.layers.0.mlp.up_proj.lora_a": _ramp(4, 2, dtype="f2"),
        "model.layers.0.mlp.up_proj.lora_b": _ramp(2, 4, dtype="f2"),
        "model.layers.0.mlp.up_proj.m": _ramp(4, dtype="f2"),
        "model.norm.weight": np.arange(4, dtype="u2"),
    }
    experts = {
        "model.layers.0.mlp.switch_mlp.up_proj.lora_a": _ramp(2, 2, 4),
        "model.layers.0.mlp.switch_mlp.up_proj.lora_b": _ramp(2, 4, 2),
    }
    return [small_adapter(), small_peft(), packed(dora), packed(experts), packed({})]


def _pieces(pattern: str, size: int = _PIECE, count: int = 6) -> list[bytes]:
    """The beginnings of some fixture files, evenly picked."""
    paths = sorted(FIXTURES.glob(pattern))
    return [path.read_bytes()[:size] for path in paths[:: max(1, len(paths) // count)][:count]]


def configs() -> Sequence[bytes]:
    return [*_pieces("runs/*/adapter_config.json", 1 << 16), peft_config()]


def peft_config() -> bytes:
    stated = json.loads((FIXTURES / "adapters/peft-written/adapter_config.json").read_bytes())
    stated |= {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "rank_pattern": {}}
    stated["base_model_name_or_path"] = None
    return json.dumps(stated).encode()


def yaml_configs() -> Sequence[bytes]:
    aliases = b"train: true\niters: 10\na: &a {rank: 8, keys: [x, y]}\nlora_parameters:\n  <<: *a\n"
    return [*_pieces("configs/*.yaml", 1 << 16, 3), aliases]


def _condensed(log: bytes) -> bytes:
    """A log without the lines that differ from two before them in digits alone."""
    seen: Counter[bytes] = Counter()
    kept = []
    for line in log.splitlines(keepends=True):
        kind = re.sub(rb"\d+", b"0", line)
        seen[kind] += 1
        if seen[kind] <= 2:
            kept.append(line)
    return b"".join(kept)


def text_logs() -> Sequence[bytes]:
    """What trainers print, in every format that is read, and failures."""
    failure = (
        b"Iter 10: Train loss 1.0\nTraceback (most recent call last):\n  x\nMemoryError: out\n"
    )
    examples = [one.example.encode() for one in formats(LogFormat)]
    return [*map(_condensed, _pieces("runs/*/train.log")), *examples, failure]


def json_line_logs() -> Sequence[bytes]:
    pieces = map(_condensed, _pieces("runs/*/train.jsonl", count=3))
    return [*pieces, b'{"step": 1, "loss": NaN}\n{"step": 2, "lo']


def notebooks() -> Sequence[bytes]:
    """What a notebook printed, as one text and line by line, and a cell that broke off."""
    printed = ["Iter 1: Train loss 2.5\n", "Iter 2: Train loss 2.25\n"]
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": printed},
        {"output_type": "display_data", "data": {"text/plain": "".join(printed)}},
        {"output_type": "error", "ename": "MemoryError", "evalue": "", "traceback": ["x"]},
    ]
    cells = [{"cell_type": "code", "source": ["train()"], "outputs": [one]} for one in outputs]
    document = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    return [json.dumps(document).encode(), json.dumps({**document, "cells": cells[:1]}).encode()]


def json_logs() -> Sequence[bytes]:
    history = [{"step": step, "epoch": 0.1, "loss": 2.5, "grad_norm": 1.0} for step in (1, 2, 3)]
    columns = {"iterations": [1, 2], "train_loss": [2.5, 2.25], "val_loss": [2.5, 2.5]}
    documents = [{"global_step": 3, "log_history": history}, history, columns]
    documents.append({"global_step": 2, "train_loss_history": [2.5, 2.25]})
    return [json.dumps(one).encode() for one in documents]


def csv_logs() -> Sequence[bytes]:
    return [
        b"step,train_loss,learning_rate\n1,2.5,1e-5\n2,2.25,1e-5\n3,,\n",
        b'"Step","a - train/loss","a - train/loss__MIN","b - train/loss"\n10,2.5,2.5,3\n20,2,2,""',
        b"epoch;loss;val_loss\n0;2,5;2,6\n1;2,25;2,5\n",
    ]


def datasets() -> Sequence[bytes]:
    rows: list[dict[str, Any]] = [
        chat("Ten?", "X"),
        {**chat("Ten?", "X"), "tools": [{"type": "function", "function": {"name": "add"}}]},
        {"prompt": "Capital of Peru?", "completion": "Lima."},
        {"text": "The capital of Peru is Lima."},
    ]
    return [b"".join([json.dumps(row).encode() + b"\n"] * 3) for row in rows]


def around_tokenizer() -> dict[str, bytes]:
    names = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    return {name: (BASE / name).read_bytes() for name in (*names, "config.json")}


def tokenizers() -> Sequence[bytes]:
    stated = json.loads((BASE / "tokenizer.json").read_bytes())
    kept = {token: number for token, number in stated["model"]["vocab"].items() if number < 300}
    merges = [one for one in stated["model"]["merges"] if "".join(one).replace(" ", "") in kept]
    stated["model"] |= {"vocab": kept, "merges": merges}
    words = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"},
    }
    return [json.dumps(one, ensure_ascii=False).encode() for one in (words, stated)]


def tokenizer_alone() -> dict[str, bytes]:
    return {"tokenizer.json": tokenizers()[0], "config.json": b'{"eos_token_id": 1}'}


def tokenizer_configs() -> Sequence[bytes]:
    decoder = {"0": {"content": "<s>", "special": True, "lstrip": False}}
    older = {
        "added_tokens_decoder": decoder,
        "eos_token": {"content": "</s>"},
        "additional_special_tokens": ["<x>"],
        "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
        "split_special_tokens": False,
    }
    return [(BASE / "tokenizer_config.json").read_bytes(), json.dumps(older).encode()]


def templates() -> Sequence[bytes]:
    """The fixture model's template, and one with most of what templates use."""
    rich = (
        "{%- macro show(m) -%}{{ m['content'] | trim }}{%- endmacro -%}"
        "{%- set ns = namespace(n=0) -%}{{ bos_token }}"
        "{% for m in messages %}{% if loop.first and m.role == 'system' %}{{ show(m) }}"
        "{% elif m.thinking is defined %}<think>{{ m.thinking }}</think>{% generation %}"
        "{{ m.content }}{% endgeneration %}{% else %}{% set ns.n = ns.n + 1 %}"
        "{{ m | tojson(indent=2) }}{% endif %}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ strftime_now('%Y') }}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' * 2 }}{% endif %}"
    )
    return [(BASE / "chat_template.jinja").read_bytes(), rich.encode()]


def metrics() -> Sequence[bytes]:
    nested = {
        "results": {"wikitext": {"word_perplexity,none": 12.5, "alias": "x"}},
        "split": "test",
    }
    line = b'{"eval_loss": 2.5}\n{"eval/perplexity": 12.5, "step": 3}\n'
    return [*_pieces("runs/*/evaluation.json"), json.dumps(nested).encode(), line]


def generations() -> Sequence[bytes]:
    row = {"messages": [{"role": "user", "content": "Ten?"}], "response": "X", "tuned_tokens": [1]}
    document = {"end_token_ids": [2], "generations": [row, "Lima"]}
    pieces = _pieces("runs/*/generations.jsonl", 1500, 3)
    return [*pieces, json.dumps(document).encode(), json.dumps([row]).encode()]


def checkpoint_names() -> Sequence[bytes]:
    return [
        b"0000100_adapters.safetensors\n0000200_adapters.safetensors\nadapters.safetensors\n",
    ]


def peft_weights() -> Sequence[bytes]:
    name = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.default.weight"
    return [small_peft(), _factors(name, ("A", 2, 4), ("B", 4, 2))]


def sources() -> Sequence[bytes]:
    return [text.encode() for pair in list(twins().values())[:3] for text in pair]


def small_model() -> bytes:
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": np.arange(16, dtype="u4").reshape(4, 4),
        "model.layers.0.self_attn.q_proj.scales": _ramp(4, 1),
        "model.layers.0.self_attn.q_proj.biases": _ramp(4, 1),
        "model.embed_tokens.weight": _ramp(4, 4, dtype="f2"),
    }
    return packed(tensors, {"format": "mlx"})


def model_configs() -> Sequence[bytes]:
    """`config.json` of that model, and of one that keeps its text settings apart."""
    plain = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "vocab_size": 4,
        "tie_word_embeddings": True,
        "quantization": {"group_size": 32, "bits": 4},
    }
    apart = {"model_type": "gemma3", "text_config": {**plain, "mode": "affine"}}
    return [json.dumps(one).encode() for one in (plain, apart)]


def around_index() -> dict[str, bytes]:
    return {
        "config.json": model_configs()[0],
        "model-00001-of-00002.safetensors": small_model(),
        "model-00002-of-00002.safetensors": packed({"model.norm.weight": _ramp(4)}),
    }


def model_indexes() -> Sequence[bytes]:
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    weights = {"model.embed_tokens.weight": files[0], "model.norm.weight": files[1]}
    return [json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}).encode()]
