"""What rows of other trainers' formats have to be renamed to, for mlx-lm to read them."""

from collections.abc import Iterable, Mapping
from typing import Any

#: What others call a prompt, most telling first: Alpaca, question and answer, Dolly, translations.
_PROMPTS = (
    "prompt", "instruction", "question", "query", "problem", "user", "human", "input", "source",
    "src", "request", "context",
)  # fmt: skip
_COMPLETIONS = (
    "completion", "output", "response", "answer", "reply", "solution", "assistant", "gpt",
    "target", "tgt", "label", "chosen",
)  # fmt: skip
_TEXTS = ("text", "content", "document", "body", "raw_text", "story", "code")
_CONVERSATIONS = (
    "messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns",
)  # fmt: skip
_ROLES = {
    "human": "user", "customer": "user", "client": "user", "prompter": "user", "question": "user",
    "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant", "model": "assistant",
    "ai": "assistant", "agent": "assistant", "chatbot": "assistant", "answer": "assistant",
    "bing": "assistant", "claude": "assistant", "llm": "assistant", "instruction": "system",
}  # fmt: skip


def how_to_rename(row: Mapping[str, Any]) -> str | None:
    """What to do with rows whose keys mlx-lm does not look for, by the first; None if unclear."""
    keys = {key.lower(): key for key in row if isinstance(key, str)}
    spoken = _first(keys, _CONVERSATIONS)
    if spoken is not None and isinstance(row[spoken], list):
        to_messages = f"{spoken} -> messages in every row, "
        if (inner := of_messages(row[spoken])) is not None:
            return f"rename {'' if spoken == 'messages' else to_messages}{inner}"
        return f"rename {to_messages}or set chat_feature: {spoken}"
    asked, answered = _first(keys, _PROMPTS), _first(keys, _COMPLETIONS)
    if asked is not None and answered is not None:
        pairs = ((asked, "prompt"), (answered, "completion"))
        changed = [(old, new) for old, new in pairs if old != new]
        renames = " and ".join(f"{old} -> {new}" for old, new in changed)
        features = ", ".join(f"{new}_feature: {old}" for old, new in changed)
        more = keys.get("input", asked)
        joined = f", with the text of {more} added to it where there is some"
        others = "; mlx_lm.lora leaves rejected out, and a trainer of DPO or ORPO learns from both"
        said = f"rename {renames} in every row{'' if more == asked else joined}; or set {features}"
        return said + (others if "rejected" in keys else "")
    text = _first(keys, _TEXTS)
    if text is not None and isinstance(row[text], str):
        return f"rename {text} -> text in every row, or set text_feature: {text}"
    return None


def of_messages(messages: object) -> str | None:
    """What to rename inside messages of ShareGPT's kind, as the end of a list of renames."""
    turns = messages if isinstance(messages, list) else []
    if not turns or not all(isinstance(turn, Mapping) for turn in turns):
        return None
    if not {"from", "value"} <= turns[0].keys():
        return None
    roles = [f"{old} -> {new}" for old, new in roles_renamed(turn.get("from") for turn in turns)]
    of_roles = f", and the roles {', '.join(roles)}" if roles else ""
    return f"from -> role and value -> content in every message{of_roles}"


def roles_renamed(roles: Iterable[object]) -> list[tuple[str, str]]:
    """Old and new name of the roles that are known under another name."""
    names = sorted({role for role in roles if isinstance(role, str)})
    plain = {role: role.strip().lower() for role in names}
    usual = _ROLES | {role: role for role in ("user", "assistant", "system")}
    return [(role, usual[plain[role]]) for role in names if usual.get(plain[role], role) != role]


def _first(keys: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((keys[name] for name in names if name in keys), None)
