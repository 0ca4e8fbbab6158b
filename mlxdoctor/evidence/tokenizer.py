"""The base model's tokenizer, giving the tokens that mlx-lm trains on.

Read from `tokenizer.json` with the `tokenizers` library and from the chat
template with Jinja2, which takes a tenth of the time of importing transformers.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import ChatTemplate, Messages, TemplateFailure
from mlxdoctor.evidence.kind import RunView
from mlxdoctor.evidence.source import Source, read_bytes, read_json_object, read_text
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.silenced import silenced
from mlxdoctor.safety.stages import Kind, Stage, StageStopped

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FILE, _REMEDY = "tokenizer.json", "download the model's tokenizer.json again"
#: Special tokens that transformers takes where a tokenizer's settings leave them out, by its class.
_OF_CLASS = {
    "GPT2Tokenizer": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "GPTNeoXTokenizer": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "Qwen2Tokenizer": {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}
#: Models whose tokenizer transformers takes as it is in the file, whatever class is stated: those
#: of its list that mlx-lm trains.
_AS_IN_FILE = frozenset(
    [
        *("ernie4_5", "ernie4_5_moe", "internlm2", "internlm3", "jamba", "minicpm3", "nemotron"),
        *("phi3", "phimoe", "qwen2", "qwen3_5", "qwen3_5_moe"),
    ]
)
#: Characters shown of what the library says.
MAX_REASON = 200
#: A text that each tokenizer has to encode before it is asked for more.
_TRIAL = "What is the capital of France? The answer is: 42,000 words, aaaaaaaaaaaaaaaaaaaaaaaa.\n"
_TEMPLATES_FOLDER = "additional_chat_templates"
#: A text that takes longer (seconds), and longer than so many characters a second would take, is
#: a slow one. Real tokenizers take a fiftieth of that.
QUICK_SECONDS, SLOW_SPEED = 0.1, 20_000.0
#: Times as long as it was that a tokenizer may make a text: bytes as characters are four times.
MOST_GROWTH = 256.0
#: Tokens that a tokenizer may add to every text: known ones add two.
MOST_ADDED = 1000
# mlx-lm passes `enable_thinking=True` to the template of any model with such tokens.
_THINKING = (
    frozenset({"<think>", "</think>"}),
    frozenset({"<longcat_think>", "</longcat_think>"}),
    frozenset({"<|think:start|>", "<|think:end|>"}),
    frozenset({"<|channel>", "<channel|>"}),
    frozenset({"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"}),
)


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and its chat template.

    Attributes:
        eos_token_id: the token mlx-lm puts after a text row; None where none is named.
        eos_token_ids: every token that ends generation in mlx-lm, the tokenizer's own included.
        bos_token_id, pad_token_id: None where none is named.
        stated_eos: where each end token is named: file -> token ids.
        renders_itself: the template is Python code, which is not run here.
    """

    kind: ClassVar[str] = "tokenizer"

    sources: tuple[Source, ...]
    path: Path
    eos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    stated_eos: Mapping[str, tuple[int, ...]]
    chat_template: str | None
    renders_itself: bool
    _backend: Any = field(repr=False, compare=False)
    _templates: Mapping[str, ChatTemplate] = field(repr=False, compare=False)
    _slow: list[float] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def find(cls, run: RunView) -> "Tokenizer":
        return cls.read(run.files.base or run.files.tuned or run.need(BaseModel).path)

    @classmethod
    def read(cls, path: Path) -> "Tokenizer":
        """Read the tokenizer of a model folder, or a `tokenizer.json` and what is beside it.

        Raises:
            InputError: there is no `tokenizer.json`, or it is damaged.
        """
        folder = path if path.is_dir() else path.parent
        file = folder / _FILE
        if not file.is_file():
            call = "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            raise InputError(folder, f"has no {_FILE}", f"save it once with transformers: {call}")
        content, source = read_bytes(file, "tokenizer_bytes")
        sources = [source]
        settings = _optional_object(folder / "tokenizer_config.json", sources)
        names = _special_tokens(folder, settings, sources)
        backend = _backend(folder, content)
        configurations: dict[str, dict[str, Any]] = {}
        for name in ("generation_config.json", "config.json"):
            # A damaged configuration is another check's finding; the tokenizer is still of use.
            with suppress(InputError):
                configurations[name] = _optional_object(folder / name, sources)
        with _asked(folder, "cannot be completed"), silenced():
            _rebuild(backend, settings, configurations)
            _complete(backend, settings, names)
        ids = {name: backend.token_to_id(token) for name, token in names.items()}
        stated = _stated_eos(configurations, ids.get("eos_token"))
        generation = stated.get("generation_config.json") or stated.get("config.json") or ()
        ends = dict.fromkeys([*generation, *stated.get("tokenizer_config.json", ())])
        texts = _template_texts(folder, settings, sources)
        is_thinking = any(
            all(backend.token_to_id(token) is not None for token in tokens) for tokens in _THINKING
        )
        variables = {**names, "enable_thinking": is_thinking}
        return cls(
            sources=tuple(sources),
            path=folder,
            eos_token_id=ids.get("eos_token"),
            eos_token_ids=tuple(ends),
            bos_token_id=ids.get("bos_token"),
            pad_token_id=ids.get("pad_token"),
            stated_eos=MappingProxyType(stated),
            chat_template=texts.get("default"),
            renders_itself=bool(settings.get("chat_template_type")),
            _backend=backend,
            _templates={
                name: ChatTemplate.compile(text, variables) for name, text in texts.items()
            },
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, with BOS and the like where the tokenizer adds them.

        Raises:
            InputError: the tokenizer's file describes one that cannot do it, or takes all day.
        """
        # What one text may take, thousands may not.
        if (slow := sum(self._slow)) > current().tokenizer_seconds:
            problem = f"took {slow:.1f} s to encode what it was slow at"
            raise exceeded(self.path / _FILE, problem, "tokenizer_seconds")
        begun = time.process_time()
        try:
            with _asked(self.path, "cannot encode a text"):
                return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        finally:
            took = time.process_time() - begun
            if took > max(QUICK_SECONDS, len(text) / SLOW_SPEED):
                self._slow.append(took)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special tokens shown."""
        with _asked(self.path, "cannot decode tokens"):
            return str(
                self._backend.decode([int(token) for token in ids], skip_special_tokens=False)
            )

    def token(self, token_id: int) -> str:
        """How the vocabulary writes a token; a number in brackets where it has none."""
        written = self._backend.id_to_token(int(token_id))
        return f"<{token_id}>" if written is None else str(written)

    def render(
        self, messages: Messages, tools: Messages | None = None, add_generation_prompt: bool = False
    ) -> str:
        """The text that the chat template makes of a conversation.

        Raises:
            TemplateFailure: there is no template, or it refuses the conversation.
        """
        if self.renders_itself:
            raise TemplateFailure("the model's chat template is Python code, which is not run")
        template = self._templates.get("tool_use") if tools is not None else None
        template = template or self._templates.get("default")
        if template is None:
            raise TemplateFailure("the tokenizer has no chat template")
        return template.render(messages, tools, add_generation_prompt)

    def apply_chat_template(
        self, messages: Messages, tools: Messages | None = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The tokens of a conversation, as mlx-lm's tokenizer gives them.

        Raises:
            TemplateFailure: as `render`.
        """
        rendered = self.render(messages, tools, add_generation_prompt)
        return self.encode(rendered, add_special_tokens=False)


@contextmanager
def _asked(folder: Path, problem: str) -> Iterator[None]:
    """A call into the library that reads tokenizers: its errors and panics become `InputError`."""
    try:
        with Stage(f"the tokenizer of {folder}", Kind.LIBRARY, limit="tokenizer_seconds"):
            yield
    except (StageStopped, InputError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise InputError(folder / _FILE, f"{problem} ({reason})", _REMEDY) from None


def _optional_object(path: Path, sources: list[Source]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value, source = read_json_object(path)
    sources.append(source)
    return value


def _content(token: object) -> str | None:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _special_tokens(
    folder: Path, settings: Mapping[str, Any], sources: list[Source]
) -> dict[str, str]:
    stated = dict(settings)
    if "added_tokens_decoder" not in settings:
        # The older layout, which newer tokenizer_config.json files replace.
        stated.update(_optional_object(folder / "special_tokens_map.json", sources))
    usual = _OF_CLASS.get(_class_of(settings), {})
    # What is stated to be null is absent.
    named = {name: _content(stated.get(name, usual.get(name))) for name in _NAMED}
    return {name: token for name, token in named.items() if token is not None}


def _class_of(settings: Mapping[str, Any]) -> str:
    return str(settings.get("tokenizer_class", "")).removesuffix("Fast")


def _rebuild(
    backend: Any, settings: Mapping[str, Any], configurations: Mapping[str, Mapping[str, Any]]
) -> None:
    """Do what transformers 5 does to a Llama's tokenizer, whatever its file says."""
    from tokenizers.pre_tokenizers import Metaspace

    is_of_pieces = backend.normalizer is not None and "Prepend" in str(backend.normalizer)
    model_type = str(configurations.get("config.json", {}).get("model_type", ""))
    is_llamas = _class_of(settings) == "LlamaTokenizer" and model_type not in _AS_IN_FILE
    if not (is_of_pieces and is_llamas):
        return
    backend.normalizer = None
    scheme = "always" if settings.get("legacy") else "first"
    scheme = "never" if settings.get("add_prefix_space") is False else scheme
    backend.pre_tokenizer = Metaspace("\u2581", prepend_scheme=scheme, split=False)


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust gave up, as over a pattern that backtracks without end."""
    return type(error).__name__ == "PanicException"


def _require_modest(path: Path, backend: Any) -> None:
    """Refuse a tokenizer that can make a text thousands of times as long.

    A few replacements, each of the last one's result, fill any memory with a text of one word.
    """
    growth = 1.0
    steps = [
        json.loads(part.__getstate__()) for part in (backend.normalizer, backend.decoder) if part
    ]
    while steps:
        step = steps.pop()
        steps += [*step.get("normalizers", ()), *step.get("decoders", ())]
        if step["type"] == "Replace":
            # A pattern may match a single character.
            replaced = step["pattern"].get("String", "")
            growth *= max(1.0, len(step["content"]) / max(len(replaced), 1))
        elif step["type"] == "Prepend":
            growth *= max(1.0, len(step["prepend"]) / 2)
    if growth > MOST_GROWTH:
        problem = f"replaces characters so that a text may become {growth:,.0f} times as long"
        raise InputError(path, problem, _REMEDY)
    if (count := backend.num_special_tokens_to_add(is_pair=False)) > MOST_ADDED:
        raise InputError(path, f"adds {count:,} tokens to every text", _REMEDY)


def _backend(folder: Path, content: bytes) -> Any:
    """The library's tokenizer, which has encoded a text."""
    from tokenizers import Tokenizer as Backend

    with _asked(folder, "is not a tokenizer"), silenced():
        backend = Backend.from_buffer(content)
        _require_modest(folder / _FILE, backend)
    with _asked(folder, "cannot encode a text"), silenced():
        backend.encode(_TRIAL)
    return backend


def _complete(backend: Any, settings: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Add the tokens that only the settings name."""
    from tokenizers import AddedToken

    # Length limits saved in the file do not apply to training rows.
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    stated = settings.get("added_tokens_decoder")
    declared = stated if isinstance(stated, Mapping) else {}
    fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for _, token in sorted(declared.items(), key=lambda item: str(item[0]).zfill(12)):
        text = _content(token)
        if text is not None and isinstance(token, Mapping):
            added = AddedToken(text, **{one: bool(token[one]) for one in fields if one in token})
            if repr(added) not in known:
                backend.add_tokens([added])
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
    more = [_content(one) for one in extra] if isinstance(extra, list) else []
    for text in [*names.values(), *filter(None, more)]:
        if backend.token_to_id(text) is None:
            backend.add_tokens([AddedToken(text, special=True)])


def _stated_eos(
    configurations: Mapping[str, Mapping[str, Any]], tokenizer_eos: int | None
) -> dict[str, tuple[int, ...]]:
    named = {"tokenizer_config.json": tokenizer_eos}
    named |= {name: values.get("eos_token_id") for name, values in configurations.items()}
    stated: dict[str, tuple[int, ...]] = {}
    for name, value in named.items():
        ids = value if isinstance(value, list) else [value]
        if known := tuple(token for token in ids if type(token) is int):
            stated[name] = known
    return stated


def _template_texts(
    folder: Path, settings: Mapping[str, Any], sources: list[Source]
) -> dict[str, str]:
    named = {file.stem: file for file in sorted((folder / _TEMPLATES_FOLDER).glob("*.jinja"))}
    texts: dict[str, str] = {}
    for name, file in {"default": folder / "chat_template.jinja", **named}.items():
        if file.is_file():
            texts[name], source = read_text(file, "template_bytes")
            sources.append(source)
    stated = settings.get("chat_template")
    if isinstance(stated, Mapping):
        stated = [{"name": name, "template": text} for name, text in stated.items()]
    if texts or not isinstance(stated, str | list):
        return texts
    entries = [{"name": "default", "template": stated}] if isinstance(stated, str) else stated
    return {
        str(entry.get("name")): str(entry.get("template"))
        for entry in entries
        if isinstance(entry, Mapping)
    }
