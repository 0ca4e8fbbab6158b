"""Lines around the reports: saves, parameters, versions, and what a trainer says of itself."""

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar, messages
from mlxdoctor.evidence.logs.series import LEVELS, MAX_HEADER, Save, Trainable
from mlxdoctor.evidence.logs.text_stream import to_number
from mlxdoctor.evidence.run_files import iteration_in

_SAVED = re.compile(
    r"(?:Iter(?:ation)?\s+(\d+):\s*)?Saved\s+(final\s+)?(?:adapter\s+)?weights\s+to\s+(\S.*)"
)
#: In the coloured table of mlx-lm: `save  0000010_adapters.safetensors`.
_LISTED = re.compile(r"(?:^|\s)save\s+(\S+\.(?:safetensors|npz))\s*$")
_SIZE = r"([\d.,]*\d)\s?(K|M|B|[Mm]illion|[Bb]illion)?\b"
#: The share, the few and all: `Trainable parameters: 0.1% (5.2M/3212.750M)`.
_SHARE = re.compile(
    r"[Tt]rainable(?:\s(?:parameters|params))?:?\s*([\d.]+)\s*%\s*"
    rf"\({_SIZE}\s*(?:/|of)\s*{_SIZE}"
)
#: As PEFT, mlx-vlm and others write it: the few, all, and the share or not.
_FEW_OF_ALL = re.compile(
    rf"[Tt]rainable\s(?:parameters|params)\s?[:=]?\s*{_SIZE}\s*"
    rf"(?:\|\|\s*all\s(?:params|parameters):?|/|of)\s*{_SIZE}"
)
_PERCENT = re.compile(r"trainable%:?\s*([\d.]+)")
_COUNT = re.compile(
    r"\b(total|all|trainable|frozen|non-?trainable|number\sof)\s(?:model\s)?param(?:eter)?s?"
    rf"\b(?:\sin\smodel)?\s{{0,8}}[:=]?\s{{0,8}}(?!\d{{1,3}}(?:\.\d{{0,9}})?\s?%){_SIZE}"
    rf"|\b(trainable|frozen)\s\([a-z ]{{1,20}}\):\s{{0,8}}{_SIZE}",
    re.IGNORECASE,
)
_MILLIONS = {"": 1e-6, "k": 1e-3, "m": 1.0, "b": 1e3}
#: What a program logs as a warning or worse, behind the level; and characters that are kept.
_LOGGED = re.compile(
    rf"^(?:.{{0,60}}?\b({'|'.join(LEVELS)})\b(?=\s{{0,4}}[\]:|-])"
    # Behind the time alone.
    rf"|(?:.{{0,60}}?[\d\])]\s{{1,4}})?({'|'.join(LEVELS)})\b)"
    r"[\]:|\s-]{1,6}(?:\[[^\]]*\]\s*)*(\w.{9,})"
)
MAX_WARNING = 120
_REFERENCE = re.compile(r"\b[Rr]ef(?:erence)?[ _][Mm]odel\b")
_STARTING = re.compile(r"(?<!is )[Ss]tarting\b")
_TRAINING = re.compile(r"\b(?:training|fine-?tuning)\b")
_ITERATIONS = re.compile(r"iters?:\s{0,8}([\d,]+)")
#: Where a trainer of preferences or rewards says what it is.
_MODE = re.compile(
    r"^\W{0,8}(?:\[?INFO\]?\W{0,3})?Training mode:\s{0,4}(\w{2,20})\s*$"
    r"|\b([A-Z][A-Za-z]{0,9}PO|KTO|RLOO)Trainer initialized\b"
    r"|^\s{0,4}Starting ([A-Z][A-Za-z]{0,9}PO|KTO|RLOO) Training\b",
    re.IGNORECASE,
)
#: A progress bar that says nothing of itself: its step, how many there are to be, and its clock.
_BAR = re.compile(
    r"(?:^|\])[^\w:]{0,99}\d{1,3}%\|[^|]{0,400}\|\s{0,4}(\d{1,9})/(\d{1,9}) \["
    r"(?:(\d{1,5}):)?(\d{1,2}):(\d\d)"
)
#: What transformers says before it counts the rows.
_SECTION = re.compile(r"\*{5} Running (training|[Ee]valuation|[Pp]rediction)")
_TEST = re.compile(r"[Tt]est[ _]loss:?\s+([\w.+-]+?)(?:,\s*(?:Test )?ppl\s+[\w.+-]+?)?\.?\s*$")
_VERSION = re.compile(
    r"\b(mlx(?:[-_](?:lm(?:[-_]lora)?|vlm|tune))?|unsloth(?:_zoo)?|transformers|torch)"
    r"(?:\s*(?:==|=|:|,|version|v)\s*|\s+)v?(\d+\.\d+(?:\.\w+)*)",
    re.IGNORECASE,
)
#: Times that are kept of a progress bar; of one that is drawn oftener every second one is.
MAX_CLOCK = 1000
_EVENTS, _HEADER = messages("events"), messages("header")


class Events(LineFormat):
    """What a trainer says beside its reports."""

    priority = 100
    example = (
        "Trainable parameters: 0.1% (5.2M/3212.750M)\n"
        "Iter 10: Saved adapter weights to a/adapters.safetensors.\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        #: "trainable", "total", "frozen" -> parameters in millions.
        self._counts: dict[str, float] = {}
        self._is_evaluated = False
        #: Whether the count of rows is that of all rows to train on.
        self._is_of_train = False
        #: Whether the model that is spoken of is the one that a policy is held against.
        self._is_reference = False
        #: How many rows were loaded from each file.
        self._loaded: set[str] = set()

    def read(self, number: int, line: str) -> bool:
        self._is_reference |= _REFERENCE.search(line) is not None
        return (
            self._saved(number, line)
            or self._parameters(line)
            or self._started(number, line)
            or self._warned(number, line)
            or self._introduced(number, line)
        )

    def _saved(self, number: int, line: str) -> bool:
        if match := _SAVED.search(line):
            iteration = int(match[1]) if match[1] and not match[2] else None
            files = [word.rstrip(".,") for word in match[3].split() if word != "and"]
            self.notes.ended += [number] if match[2] else []
            self.notes.saves.append(Save(iteration, tuple(files)))
        elif match := _LISTED.search(line):
            self.notes.saves.append(Save(iteration_in(match[1]), (match[1],)))
        elif match := _TEST.search(line):
            loss = to_number(match[1].rstrip("."))
            self.notes.test_losses += [] if loss is None else [loss]
        return match is not None

    def _parameters(self, line: str) -> bool:
        percent = 0.0
        if match := _SHARE.search(line) or _FEW_OF_ALL.search(line):
            few, unit, total, its_unit = match.groups()[-4:]
            self._counts |= {"trainable": _millions(few, unit), "total": _millions(total, its_unit)}
            stated = match if len(match.groups()) == 5 else _PERCENT.search(line)
            percent = _amount(stated[1]) if stated else 0.0
        elif match := _COUNT.search(line):
            which, size, its_unit = match.group(1, 2, 3) if match[1] else match.group(4, 5, 6)
            which = which.lower()
            kind = "total" if which in ("all", "number of") else which
            kind = "frozen" if kind.startswith("non") else kind
            self._counts[kind] = _millions(size, its_unit)
        else:
            return False
        counts = self._counts
        few_millions = counts.get("trainable")
        total_millions = counts.get("total")
        if few_millions is not None:
            if total_millions is None and "frozen" in counts:
                total_millions = few_millions + counts["frozen"]
            if total_millions:
                percent = percent or 100 * few_millions / total_millions
            if not few_millions and self._is_reference:
                self._is_reference = False
                return True
            self.notes.trainable = Trainable(percent, few_millions, total_millions)
        return True

    def _started(self, number: int, line: str) -> bool:
        mode = _MODE.search(line)
        if mode is not None:
            self.notes.header["training"] = next(filter(None, mode.groups()))
        # Three searches, each from where the last ended: one pattern would try every pair.
        begun = _STARTING.search(line)
        training = _TRAINING.search(line, begun.end()) if begun else None
        if training is None:
            return mode is not None
        self.notes.run_marks.append(number)
        iterations = _ITERATIONS.search(line, training.end())
        if iterations and iterations[1].strip(","):
            self.notes.announce(number, _amount(iterations[1]))
        return True

    def _warned(self, number: int, line: str) -> bool:
        """Whether the trainer says what becomes of the run, or what it goes without."""
        for field, pattern in _EVENTS.items():
            if pattern.search(line):
                getattr(self.notes, field).append(number)
                return True
        if logged := _LOGGED.match(line):
            said, level = logged[3][:MAX_WARNING].strip(), logged[1] or logged[2]
            self.notes.remark(self.notes.warnings, number, said, level)
        return logged is not None

    def _introduced(self, number: int, line: str) -> bool:
        """Whether the line names versions, the machine or settings; the first of each counts."""
        versions, header = self.notes.versions, self.notes.header
        named = _VERSION.findall(line)
        for name, version in named:
            versions.setdefault(name.lower().replace("_", "-"), version.rstrip("."))
        is_known = bool(named)
        if section := _SECTION.search(line):
            self._is_evaluated = section[1] != "training"
        for entry, pattern in _HEADER.items() if len(header) < MAX_HEADER else ():
            # The rows of an evaluation are none to train on.
            if (stated := pattern.search(line)) and not (entry == "rows" and self._is_evaluated):
                value = next(filter(None, stated.groups())).rstrip(".,:")
                if entry == "rows" and not self._counts_rows(stated[0].lower(), value):
                    continue
                if entry == "mean_loss":
                    self.notes.mean_losses.append(_amount(value))
                elif entry in header:
                    self.notes.restated.append((number, entry, value))
                else:
                    header[entry] = value
                if entry == "steps":
                    self.notes.announce(number, _amount(value))
                is_known = True
        for bar in _BAR.finditer(line) if not is_known and "%|" in line else ():
            hours, minutes, seconds = (int(part or 0) for part in bar.groups()[2:])
            taken = 3600.0 * hours + 60.0 * minutes + seconds
            self._drawn(number, int(bar[1]), int(bar[2]), taken)
        return is_known

    def _counts_rows(self, said: str, value: str) -> bool:
        """Whether a count of rows may be that of all rows to train on."""
        header = self.notes.header
        if "total" in said or "train" in said:
            # The files before it were parts, or had rows that are held out.
            if not self._is_of_train:
                header.pop("rows", None)
            self._is_of_train = True
        elif said.startswith("loaded"):
            self._loaded.add(value)
            if len(self._loaded) > 1:
                # Of several files that are loaded none has all.
                if header.get("rows") in self._loaded:
                    del header["rows"]
                return False
        return True

    def _drawn(self, number: int, step: int, total: int, seconds: float) -> None:
        """Note how far a progress bar has come; one that begins anew has come to its end."""
        last, _ = self.notes.bars.get(total, (0, 0))
        self.notes.bars[total] = (step if step >= last else total, number)
        clock = self.notes.clocks.setdefault(total, [])
        if step >= last:
            clock.append((step, seconds))
        if len(clock) > MAX_CLOCK:
            del clock[1::2]


def _amount(text: str) -> float:
    return to_number(text.rstrip(".")) or 0.0


def _millions(number: str, unit: str | None) -> float:
    """A count of parameters in millions."""
    return _amount(number) * _MILLIONS[(unit or "")[:1].lower()]
