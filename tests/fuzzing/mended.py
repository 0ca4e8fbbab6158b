"""Faults that fuzzing found, with the inputs that caused them: `found_by` and what was changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mended:
    """One fault.

    Attributes:
        reader: the reader's name, or what else failed.
        file: the input, in the reader's folder of the corpus; empty where there is none, or
            where it has a megabyte.
        found_by: "atheris", "mutation", "stretching", "hypothesis" or "fault injection".
        what: what happened, as a clause.
        change: what was changed, as a clause.
    """

    reader: str
    file: str
    found_by: str
    what: str
    change: str


MENDED: tuple[Mended, ...] = (
    Mended(
        *("npz", "mended-nameless-member", "atheris"),
        "a member without a name: IndexError in zipfile",
        "any error of zipfile is a refusal",
    ),
    Mended(
        *("npz", "mended-name-not-utf8", "atheris"),
        "a name that is not UTF-8: UnicodeDecodeError while listing",
        "the same",
    ),
    Mended(
        *("npz", "mended-comment-as-name", "atheris"),
        "a local header that is not UTF-8: UnicodeDecodeError while opening",
        "the same",
    ),
    Mended(
        *("safetensors", "", "atheris"),
        "a signalling NaN: a warning of NumPy on the terminal, seen when the corpus was replayed",
        "cast without a warning; the NaN is a check's finding",
    ),
    Mended(
        *("text-log", "mended-longer-row", "atheris"),
        "a Markdown row with more cells than its header: IndexError",
        "cells beyond the header are left out",
    ),
    Mended(
        *("text-log", "mended-row-beyond-names", "atheris"),
        "the same in a table without steps: IndexError",
        "the same",
    ),
    Mended(
        *("tokenizer", "mended-no-unknown-token", "atheris"),
        "a vocabulary without its unknown token: an error of the library while encoding",
        "a text that cannot be encoded is a refusal",
    ),
    Mended(
        *("metrics", "mended-huge-number", "hypothesis"),
        "a whole number of over 308 digits: OverflowError",
        "it counts as infinite",
    ),
    Mended(
        *("dataset", "mended-huge-token", "atheris"),
        "a row of tokens with an id beyond 32 bits: OverflowError",
        "the row is refused, as one that mlx-lm stumbles over",
    ),
    Mended(
        *("yaml-config", "", "stretching"),
        "2.2 s for a megabyte of values before it was refused",
        "counted while it is parsed (limit yaml_values)",
    ),
    Mended(
        *("source", "", "stretching"),
        "9.3 s for a megabyte of names in one line: every rule walked the whole tree anew",
        "one list of nodes and one of functions; limits source_nodes and source_bytes",
    ),
    Mended(
        *("chat-template", "", "stretching"),
        "3.5 s to compile a megabyte of template",
        "limit template_bytes lowered to 256 kB",
    ),
    Mended(
        *("jsonl-log", "mended-cut-number", "fault injection"),
        "a record cut off inside a number was read as that half of the number",
        "an object that is not closed is left out",
    ),
    Mended(
        *("settings", "mended-key-no-text", "hypothesis"),
        "an unknown key that is a number, under `mlxdoctor:`: TypeError in the look for a like one",
        "its text is compared",
    ),
    Mended(
        *("policy", "mended-code-a-list", "atheris"),
        "an ignored code that is a list: TypeError in the look for a like one",
        "it is refused",
    ),
    Mended(
        *("text-log", "mended-total-nan", "mutation"),
        "a panel that announces nan iterations: ValueError",
        "what can be no count of iterations is left out",
    ),
    Mended(
        *("csv-log", "mended-infinite-epochs", "mutation"),
        "infinite epochs: a warning of NumPy on the terminal",
        "times are compared, not subtracted",
    ),
    Mended(
        *("settings", "mended-lora-key-no-text", "mutation"),
        "an unknown key that is a number, under lora_parameters: TypeError in the look for another",
        "its text is compared",
    ),
    Mended(
        *("settings", "mended-lora-keys-mixed", "mutation"),
        "the same with a text beside it: TypeError while they are sorted",
        "their texts are sorted",
    ),
    Mended(
        *("settings", "mended-rate-of-400-digits", "mutation"),
        "a whole number of 400 digits as the learning rate: OverflowError",
        "YAML's whole numbers are bounded as JSON's are, those of --set too",
    ),
    Mended(
        *("yaml-config", "mended-sixties", "reading"),
        "a number of 400 parts in base 60: OverflowError in PyYAML",
        "numbers of over 200 characters are refused",
    ),
    Mended(
        *("yaml-config", "", "mutation"),
        "4,096 brackets: 0.6 s in PyYAML, which looks at all that are open for each",
        "configurations nest as deep as JSON's may",
    ),
    Mended(
        *("watched-log", "mended-head-looked-at-again", "mutation"),
        "lines that look broken, written one by one: all of the first 400 read again for each, "
        "18.8 s for 4 kB",
        "they are looked at again once they are a quarter more",
    ),
    Mended(
        *("chat-template", "mended-infinite", "mutation"),
        "1e999 in a template, which Jinja writes as the name inf: NameError",
        "the template fails on the conversation, as with its other errors",
    ),
    Mended(
        *("chat-template", "mended-other-digits", "mutation"),
        "a template whose Python has digits of another script: SyntaxError",
        "a template that Python refuses does not compile",
    ),
    Mended(
        *("chat-template", "mended-nested-parts", "mutation"),
        "one that Jinja makes too deep a nest of parentheses of: SyntaxError",
        "the same",
    ),
    Mended(
        *("notebook", "mended-many-words", "mutation"),
        "1.7 s for a line with 130 times `_tyt` before `loss` and a counter, and with the fourth "
        "power of its length: a name of three words could be chosen in a million ways",
        "in one way only, from the last 100 characters",
    ),
    Mended(
        *("source", "", "mutation"),
        "`1or 2` in a trainer: a warning of Python's on the terminal",
        "it is not said",
    ),
    Mended(
        *("watched-log", "", "stretching"),
        "23 s for a megabyte of one line that is written over, looked at anew with each piece",
        "no more than its first 131,072 characters decide how a log goes on",
    ),
    Mended(
        *("step-records", "", "stretching"),
        "7.7 s for a megabyte of line breaks, each of them parsed",
        "what does not begin with a brace is no record",
    ),
    Mended(
        *("policy", "mended-long-key", "reading"),
        "a key of 100,000 parts: over a minute in the library that reads TOML",
        "a key of more than 200 parts is refused; limit policy_bytes",
    ),
    Mended(
        *("policy", "mended-huge-threshold", "reading"),
        "a threshold of over 308 digits: OverflowError",
        "it is refused",
    ),
    Mended(
        *("baseline", "mended-huge-figure", "reading"),
        "a figure of over 308 digits: OverflowError",
        "it is no figure",
    ),
    Mended(
        *("policy", "", "reading"),
        "a pipe or a device in place of a policy or a baseline: read without end",
        "regular files alone are read, up to a limit",
    ),
    Mended(
        *("resumed training", "", "fault injection"),
        "metrics.jsonl and adapter_config.json were not replaced at once; a line that is no "
        "object, or not UTF-8, ended the run with a traceback",
        "written beside and renamed; such lines are dropped",
    ),
    Mended(
        *("output", "", "fault injection"),
        "a full standard output gave a traceback, a closed pipe the exit code of a finding",
        "one sentence and exit code 2; nothing and 141",
    ),
    Mended(
        *("output", "", "fault injection"),
        "a terminal without the characters: UnicodeEncodeError",
        "they are escaped",
    ),
    Mended(
        *("base model", "", "fault injection"),
        "a model called ~nobody, or a user without a home: RuntimeError",
        "it is not found; nothing is shortened to ~",
    ),
)
