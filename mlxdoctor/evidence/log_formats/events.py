"""Lines around the reports: saves, truncation, parameters, failures, versions."""

from __future__ import annotations

import builtins
import re

from mlxdoctor.evidence.logs.frames import decisive
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import snake_case
from mlxdoctor.evidence.logs.series import MAX_HEADER, LogFailure, Save, Trainable

#: Failures kept; a crash loop repeats itself.
MAX_FAILURES = 50
MAX_TEXT = 300
#: Warnings of one kind that are kept.
MAX_WARNINGS = 10_000
#: Larger counts are taken for this.
MOST = 1e15

_HINT = re.compile(
    r"[Ss]av(?:ed|ing)|longest|aram(?:eter)?s|[Mm]odel|[Ss]tarting|Test loss|Loading|[Tt]rainer"
    r"|Training|mlx|[Mm]emory|MEMORY|Error|Exception|Traceback|[Kk]ill|[Aa]bort|ABRT|[Ss]egmentation"
    r"|[Vv]alidation set|[Nn]o (?:valid|eval)"
    r"|[Nn]o \w+ (?:target|token|label)|[Aa]ll (?:masked|targets|tokens|labels)"
    r"|METAL|Insufficient|allocate|Interrupt|terminating|LoRA|[Rr]ate:|OOM|[Ss]ize:|[Ee]pochs"
)
_SAVED = re.compile(
    r"(?:Iter(?:ation)?\s+(\d+):\s*)?Saved\s+(final\s+)?(?:adapter\s+)?weights\s+to\s+(\S.*)"
)
_FILE = re.compile(r"\S+")
_TRUNCATED = re.compile(r"longest sen\w+ ([\d,]+) will be truncated to ([\d,]+)")
_LONGER = re.compile(r"sequences are longer than ([\d,]+) tokens")
_SIZE = r"([\d.,]*\d)\s?(K|M|B|[Mm]illion|[Bb]illion)?\b"
_SHARE = re.compile(
    r"[Tt]rainable(?:\s(?:parameters|params))?:?\s*([\d.]+)\s*%\s*"
    rf"\({_SIZE}\s*(?:/|of)\s*{_SIZE}"
)
#: As PEFT, mlx-vlm and others write it: the few, all, and the share or not.
_FEW_OF_ALL = re.compile(
    rf"[Tt]rainable\s(?:parameters|params)\s?[:=]?\s*{_SIZE}\s*"
    rf"(?:\|\|\s*all\s(?:params|parameters):?|/|of)\s*{_SIZE}"
)
_COUNT = re.compile(
    r"\b(total|all|trainable|frozen|non-?trainable|number\sof)\s(?:model\s)?param(?:eter)?s?"
    rf"\b(?:\sin\smodel)?\s{{0,8}}[:=]?\s{{0,8}}{_SIZE}",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"trainable%:?\s*([\d.]+)")
_MILLIONS = {"": 1e-6, "k": 1e-3, "m": 1.0, "b": 1e3}
_STARTING = re.compile(r"[Ss]tarting\b")
_TRAINING = re.compile(r"\btraining\b")
_ITERATIONS = re.compile(r"iters?:\s{0,8}([\d,]+)")
_METHOD = re.compile(r"Starting (\S+) training", re.IGNORECASE)
#: Where a trainer of preferences or rewards says what it is.
_MODE = re.compile(
    r"^\W{0,8}(?:\[?INFO\]?\W{0,3})?Training mode:\s{0,4}(\w{2,20})\s*$"
    r"|\b([A-Z][A-Za-z]{0,9}PO|KTO|RLOO)Trainer initialized\b"
    r"|^\s{0,4}Starting ([A-Z][A-Za-z]{0,9}PO|KTO|RLOO) Training\b",
    re.IGNORECASE,
)
_TEST = re.compile(r"Test loss\s+([\w.+-]+?)(?:,\s*Test ppl\s+([\w.+-]+?))?\.?\s*$")
#: A home-made trainer's warning that a batch has nothing to learn.
_TARGETLESS = re.compile(
    r"\b[Nn]o (?:valid|supervised|trainable|unmasked|non-masked|active|target|label)\w* "
    r"(?:targets?|tokens?|labels?)\b"
    r"|\b[Aa]ll (?:the )?(?:targets|tokens|labels)(?: in .{1,30}?)? (?:are |were |is )?"
    r"(?:masked|ignored|-100)"
    r"|\b[Aa]ll masked\b"
)
#: A trainer's remark that it has nothing to validate on, and trains all the same.
_UNVALIDATED = re.compile(
    r"\bValidation set (?:was )?(?:not found|empty|missing)"
    r"|\b[Nn]o (?:validation|eval(?:uation)?)[ _](?:data(?:set)?|set|split|file|rows)\b"
    r"(?=.{0,40}(?:found|provided|given|available|skip|without)|\W*$)"
)
_VERSION = re.compile(
    r"\b(mlx(?:[-_](?:lm(?:[-_]lora)?|vlm|tune))?|unsloth(?:_zoo)?|transformers|torch)"
    r"(?:\s*(?:==|=|:|,|version|v)\s*|\s+)v?(\d+\.\d+(?:\.\w+)*)",
    re.IGNORECASE,
)
_LOADED = re.compile(r"Loading Hugging Face dataset (\S+?)\.?\s*$")
_CONFIG = re.compile(r"Loading configuration file (\S+)")
_COMMAND = re.compile(r"(?:^|\s)((?:python\d?\s+-m\s+)?mlx_(?:lm|vlm)[._ ]\S*lora\b.*)$")
_RESUMED = re.compile(r"Loading (?:fine-tuned weights|pretrained adapters?) from (\S+)")
#: A model that is named where a trainer loads it, or where it shows its settings.
_MODEL = re.compile(
    r"(?:--model[= ]|\b(?:base[_ -]?|loading\s|using\s|pretrained[_ ])?model(?:s|_id|_name|_path"
    r"|_name_or_path|\sname|\spath|\sid)?(?:\sfrom)?['\"]?\s?(?:[:=]|\s)\s?)\[?['\"]?"
    r"([A-Za-z][\w.-]{1,60}/[\w.-]{2,90}|[A-Za-z][\w.]{1,40}-[\w.-]{0,40}\d[bB]\b[\w.-]{0,40})",
    re.IGNORECASE,
)
#: The machine's memory, as Metal's own line, `mx.metal.device_info()` or unsloth print it.
_MACHINE = re.compile(
    r"(?:\bsystem ?memory|\bmemory_size|\bmax memory|\bunified memory|\btotal (?:memory|ram))"
    r"['\"]?\s?[:=]\s?(\d+(?:\.\d+)?)\s?(GB|GiB|MB)?\b",
    re.IGNORECASE,
)
_HEADER = (
    ("model", _MODEL),
    ("dataset", _LOADED),
    ("config", _CONFIG),
    ("command", _COMMAND),
    ("resumed_from", _RESUMED),
)
_SETTING = re.compile(r"^\s*([A-Z][A-Za-z ]{2,30}):\s+(\S.{0,200})$")
_SHORT = re.compile(r"\b(r|alpha|dropout)\s*=\s*([\d.]+)")

_FAILURES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "out-of-memory",
            r"[Ii]nsufficient [Mm]emory|OutOfMemory|[Oo]ut [Oo]f [Mm]emory|[Oo]ut of memory"
            r"|MemoryError|[Cc]annot allocate memory|Attempting to allocate \d+ bytes"
            r"|[Uu]nable to allocate|\boom-kill|\bOOM\b.{0,200}kill|std::bad_alloc",
        ),
        (
            "gpu-error",
            r"Command buffer execution failed|kIOGPUCommandBufferCallbackError"
            r"|CUDA error|Metal device.{0,200}(?:lost|removed)",
        ),
        (
            "killed",
            r"^\s*(?:\S+:\s+)?(?:line \d+:\s+)?(?:\d+\s+)?[Kk]illed\b|Killed: 9|signal 9\b|SIGKILL",
        ),
        ("interrupted", r"^\s*KeyboardInterrupt\b|SIGINT|^\s*zsh: interrupt"),
        (
            "aborted",
            r"libc\+\+abi: terminating|terminate called|^\s*Aborted\b|Abort trap: 6|SIGABRT"
            r"|zsh: (?:abort|bus error|segmentation fault)|Segmentation fault",
        ),
    )
)
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Warning|Exit)\b.*|^[A-Za-z_][\w.]*: .+"
)
_BARE = re.compile(r"^(?P<name>[A-Za-z_][\w.]{0,100}(?:Error|Exception)): \S")


class Events(LineFormat):
    """What a trainer says beside its reports."""

    priority = 100
    example = "Iter 10: Saved adapter weights to a/adapters.safetensors.\nKilled: 9\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._frozen: float | None = None

    def read(self, number: int, line: str) -> bool:
        """Whether the line was one of the known events."""
        if self.log.frames.begun is not None and self._in_traceback(number, line):
            return True
        if not _HINT.search(line):
            return False
        return self._note(number, line) or self._fail(number, line) or self._head(line)

    @property
    def is_open(self) -> bool:
        """Whether a traceback is open."""
        return self.log.frames.begun is not None

    def _note(self, number: int, line: str) -> bool:
        notes = self.notes
        if match := _SAVED.search(line):
            at = int(match.group(1)) if match.group(1) and not match.group(2) else None
            text = match.group(3)
            files = tuple(one.rstrip(".,") for one in _FILE.findall(text) if one != "and")
            notes.saves.append(Save(at, files))
        elif match := _TRUNCATED.search(line):
            notes.truncations.append((_count(match.group(1)), _count(match.group(2))))
        elif match := _SHARE.search(line):
            percent, few, its_unit, total, unit = match.groups()
            notes.trainable = Trainable(
                _amount(percent), _millions(few, its_unit), _millions(total, unit)
            )
        elif match := _FEW_OF_ALL.search(line):
            few, its_unit, total, unit = match.groups()
            notes.trainable = _share(_millions(few, its_unit), _millions(total, unit), line)
        elif match := _COUNT.search(line):
            self._parameters(match.group(1).lower(), _millions(*match.group(2, 3)))
        elif match := _MODE.search(line):
            notes.header["training"] = next(filter(None, match.groups()))
        elif self._start(number, line):
            pass
        elif match := _TEST.search(line):
            notes.test_loss = _float(match.group(1))
            notes.test_perplexity = _float(match.group(2)) if match.group(2) else None
        elif self._warned(number, line):
            pass
        elif match := _LONGER.search(line):
            notes.header.setdefault("longer_than", match.group(1))
        else:
            return False
        return True

    def _warned(self, number: int, line: str) -> bool:
        """Whether the trainer says what the run goes without."""
        if _TARGETLESS.search(line):
            kept = self.notes.targetless
        elif _UNVALIDATED.search(line) and "Error" not in line:
            kept = self.notes.unvalidated
        else:
            return False
        if len(kept) < MAX_WARNINGS:
            kept.append(number)
        return True

    def _start(self, number: int, line: str) -> bool:
        # Three searches, each from where the last ended: one pattern would try every pair.
        begun = _STARTING.search(line)
        training = _TRAINING.search(line, begun.end()) if begun else None
        if training is None:
            return False
        iterations = _ITERATIONS.search(line, training.end())
        if iterations is None and not line.lstrip().startswith("Starting"):
            return False
        notes = self.notes
        notes.run_marks.append(number)
        if method := _METHOD.search(line):
            notes.header["training"] = method.group(1)
        if iterations and iterations.group(1).strip(","):
            notes.announce(number, _amount(iterations.group(1)))
        return True

    def _parameters(self, which: str, millions: float) -> None:
        notes = self.notes
        if which == "trainable":
            notes.trainable_line = millions
        elif which in ("total", "all", "number of"):
            notes.total_line = millions
        else:
            self._frozen = millions
        few = notes.trainable_line
        total = notes.total_line
        if total is None and few is not None and self._frozen is not None:
            total = few + self._frozen
        if total is not None and few is not None:
            notes.trainable = _share(few, total)

    def _in_traceback(self, number: int, line: str) -> bool:
        frames = self.log.frames
        if not frames.has_ended and (not line.strip() or line[0] in " \t|^~"):
            frames.read(line)
            return True
        begun = frames.begun or number
        if not _RAISED.match(line):
            self._add(begun, "traceback", "Traceback (most recent call last)")
            return False
        kind = next((kind for kind, pattern in _FAILURES if pattern.search(line)), "traceback")
        self._add(begun, kind, line)
        return True

    def finish(self) -> None:
        """A traceback that the log cuts off is one nonetheless."""
        if (begun := self.log.frames.begun) is not None:
            self._add(begun, "traceback", "Traceback (most recent call last)")

    def _fail(self, number: int, line: str) -> bool:
        if "Traceback (most recent call last)" in line:
            self.log.frames.begin(number)
            return True
        for kind, pattern in _FAILURES:
            if pattern.search(line):
                self._add(number, kind, line)
                return True
        bare = _BARE.match(line)
        if bare is not None and ("." in bare["name"] or hasattr(builtins, bare["name"])):
            # The end of a traceback whose beginning was not kept.
            self._add(number, "traceback", line)
            return True
        return False

    def _add(self, number: int, kind: str, text: str) -> None:
        frames = self.log.frames.take()
        at = decisive(frames)
        place, code = (at.place, at.code if at.is_own else "") if at is not None else ("", "")
        # The last one is what ended the run: it is kept in any case.
        del self.notes.failures[MAX_FAILURES - 1 :]
        text = text.strip()[:MAX_TEXT]
        names = tuple(one.name for one in frames)
        self.notes.failures.append(LogFailure(number, kind, text, place, code, names))

    def _head(self, line: str) -> bool:
        notes = self.notes
        found = False
        if "mlx" in line or "torch" in line or "unsloth" in line or "transformers" in line:
            for name, version in _VERSION.findall(line):
                notes.versions.setdefault(name.lower().replace("_", "-"), version.rstrip("."))
                found = True
        if len(notes.header) >= MAX_HEADER:
            return found
        if match := _MACHINE.search(line):
            notes.header.setdefault("machine_memory_gb", f"{_gigabytes(*match.groups()):g}")
            return True
        named = [(key, match) for key, one in _HEADER if (match := one.search(line))]
        for key, match in named:
            notes.header.setdefault(key, match.group(1).rstrip(".,:"))
        if named:
            return True
        if line.startswith("  ") and "LoRA" in line and (pairs := _SHORT.findall(line)):
            for name, value in pairs:
                notes.header.setdefault("rank" if name == "r" else name, value)
            return True
        if line.startswith(" ") and (match := _SETTING.match(line)):
            notes.header.setdefault(snake_case(match.group(1)), match.group(2).strip())
            return True
        return found


def _gigabytes(number: str, unit: str | None) -> float:
    """Without a unit it is bytes, unless there are too few of them for that."""
    size = float(number)
    if unit is None:
        return size * 1e-9 if size >= 1e9 else size
    return size * 1e-3 if unit.upper() == "MB" else size


def _count(text: str) -> int:
    return int(min(_amount(text), MOST))


def _amount(text: str) -> float:
    return _float(text.replace(",", "")) or 0.0


def _millions(number: str, unit: str | None) -> float:
    """A count of parameters in millions."""
    return _amount(number) * _MILLIONS[(unit or "")[:1].lower()]


def _share(few: float, total: float, line: str = "") -> Trainable:
    """The count with its share: the line's own where it states one."""
    stated = _PERCENT.search(line)
    percent = _amount(stated.group(1)) if stated else 100.0 * few / total if total else 0.0
    return Trainable(percent, few, total)


def _float(text: str) -> float | None:
    try:
        return float(text.rstrip("."))
    except ValueError:
        return None
