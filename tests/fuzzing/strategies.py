"""Inputs for hypothesis: mutations of sound files, JSON of a format's own words, tensor headers."""

import json
import struct
from typing import Any

from hypothesis import strategies as st

from tests.fuzzing.readers import Reader

#: Values that readers trip over: no finite number, beyond 64 bits, beyond a float.
ODD_NUMBERS = (0, -1, 2**31, 2**63, -(2**63), 10**400, 1e308, 5e-324, float("nan"), float("inf"))


@st.composite
def mutations(draw: st.DrawFn, reader: Reader) -> bytes:
    """A sound input of the reader with a few pieces removed, repeated, swapped or put in."""
    content = draw(st.sampled_from(list(reader.seeds())))
    tokens = [token.encode() for token in reader.tokens] or [b"\0"]
    for _ in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, len(content))), draw(st.integers(0, 64))
        end = start + length
        piece = content[start:end]
        new = draw(
            st.one_of(
                st.just(b""),
                st.just(piece * 3),
                st.just(piece[::-1]),
                st.binary(max_size=8),
                st.sampled_from(tokens),
                st.sampled_from(ODD_NUMBERS).map(lambda number: json.dumps(number).encode()),
            )
        )
        content = content[:start] + new + content[end:]
    return content


def _words(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_words, value.values()))
    if isinstance(value, list):
        return set().union(*map(_words, value))
    return {value} if isinstance(value, str) else set()


def json_like(reader: Reader) -> st.SearchStrategy[bytes]:
    """JSON of any shape, some of it in lines, with the keys and texts of the sound inputs."""
    words: set[str] = set()
    for seed in reader.seeds():
        for line in (seed, *seed.splitlines()[:3]):
            try:
                words |= _words(json.loads(line))
            except ValueError:
                continue
    known = st.sampled_from(sorted(words)) if words else st.text(max_size=6)
    leaf = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 10),
        st.sampled_from(ODD_NUMBERS),
        st.floats(),
        st.text(max_size=6),
        known,
    )
    value = st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(known, inner, max_size=5),
        max_leaves=12,
    )
    objects = st.dictionaries(known, value, max_size=6)
    lines = st.lists(objects, min_size=1, max_size=3)
    return st.one_of(
        objects.map(json.dumps),
        lines.map(lambda rows: "\n".join(map(json.dumps, rows))),
        lines.map(json.dumps),
    ).map(str.encode)


@st.composite
def tensor_files(draw: st.DrawFn) -> bytes:
    """A .safetensors file whose header is well formed, and now and then tells the truth."""
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 2**32, 2**63]), max_size=4)
    offset = st.sampled_from([0, 4, 8, 16, 32, 2**40, 2**64])
    names = st.sampled_from(
        [
            f"{prefix}layers.{layer}.q_proj.{role}"
            for prefix in ("", "base_model.model.")
            for layer in (0, "x", 10**30)
            for role in ("lora_a", "lora_b", "m", "lora_A.weight", "lora_B.weight", "scales")
        ]
    )
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "U32", "F4", "C64", "F8_E4M3", "X", ""]),
            "shape": sizes,
            "data_offsets": st.tuples(offset, offset).map(list),
        }
    )
    sound = st.integers(1, 4).map(
        lambda size: {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}
    )
    header = draw(st.dictionaries(names, entry | sound, max_size=4))
    text = json.dumps(header).encode()
    length = draw(st.sampled_from([len(text), len(text), len(text) + 1, 2**63]))
    return struct.pack("<Q", length) + text + bytes(draw(st.sampled_from([0, 4, 16, 64])))
