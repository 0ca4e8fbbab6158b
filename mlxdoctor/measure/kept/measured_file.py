"""A file of what models measured: read back in place of running them, and written.

It is JSON, packed where its name ends in `.gz`:

    {"format": "mlxdoctor measurements", "version": 1,
     "files": [[part, name, bytes, sha256, whole]],
     "measured": {kind of evidence:
        {"code": hash, "files": [index], "present": {kind: hash}, "absent": [kind],
         "budget": seconds, "partial": bool, "made": {"at", "system", "device", "versions"},
         "value": ..., or "failure": [type, sentence, ...]}}}

What was measured is used where every file that it was measured from is the same here, or is
not here at all, and the code that measures it is the same. It holds rows and answers: who may
not read the data may not read this file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from gzip import compress
from pathlib import Path
from sys import modules
from typing import Any, Protocol, TypeVar

from mlxdoctor.evidence.environment import Environment
from mlxdoctor.evidence.json_text import mended, too_deep
from mlxdoctor.evidence.kind import Missing, NoSuchThing, NotThere
from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.evidence.source import Source, read_bytes
from mlxdoctor.measure.kept.bindings import Bindings, BoundFile, Here
from mlxdoctor.measure.kept.code_version import code_version
from mlxdoctor.measure.kept.codec import Codec, UnfitValueError
from mlxdoctor.measure.kept.fingerprint import fingerprint
from mlxdoctor.measure.kept.on_demand import OnDemand
from mlxdoctor.models.cpu_functions import on_cpu
from mlxdoctor.models.load import loaded_from
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.time_budget import TimeBudget

T = TypeVar("T")

FORMAT = "mlxdoctor measurements"
#: Rises when an older mlxdoctor can't read what a newer one writes.
VERSION = 1
#: What a failure to measure was, by its name in the file.
_FAILURES: Mapping[str, type[Missing]] = {
    "no-such-thing": NoSuchThing,
    "not-there": NotThere,
    "missing": Missing,
}
#: Parts of a run that no other run has: one of them must be here and be the same.
_OWN_PARTS = frozenset({"adapter", "tuned", "config", "settings"})
_REMEDY = "name another file with --measured, or remove this one to measure anew"
#: What values of types that the codec does not know end in: such evidence is measured each time.
_UNKEPT = (TypeError, NameError)
_GZIP = b"\x1f\x8b"
_DEPTH = 32


class KeptRun(Protocol):
    """What is needed of a `Run` to keep what is measured of it."""

    @property
    def files(self) -> RunFiles:
        """Which file is which kind of evidence."""

    @property
    def budget(self) -> TimeBudget:
        """How long models may run."""

    @property
    def allow_model(self) -> bool:
        """Whether they may."""

    def get(self, kind: type[T]) -> T | None:
        """Other evidence, or None."""

    def need(self, kind: type[T]) -> T:
        """Other evidence; raises `Missing` with the reason why there is none."""

    def made_with(self, kind: type[Any]) -> Sequence[type[Any]]:
        """The other kinds of evidence that one was made with, near and far."""


@dataclass(frozen=True)
class Made:
    """When and where something was measured.

    Attributes:
        at: date and time, UTC, to the minute.
        system: operating system and architecture.
        device: what computed.
        versions: of the packages there.
    """

    at: str
    system: str
    device: str
    versions: Mapping[str, str]

    @classmethod
    def here(cls) -> Made:
        """Now, on this machine."""
        environment = Environment.read()
        device = "processor" if on_cpu() else "GPU"
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return cls(at, environment.machine, device, dict(environment.here))

    @property
    def words(self) -> str:
        """For a person, as a clause."""
        versions = [
            f"{name} {self.versions[name]}" for name in ("mlx", "mlx-lm") if name in self.versions
        ]
        return ", ".join([f"{self.at} on {self.system} ({self.device})", *versions])


@dataclass(frozen=True)
class Entry:
    """One kind of evidence, as it was measured.

    Attributes:
        code: the version of what measured it.
        files: what it was measured from.
        present: other kinds of evidence that it was made with -> a hash of what they said.
        absent: those that were looked for and not there.
        budget: seconds that models might run; None for as long as it took.
        partial: whether the budget left something out.
        made: when and where.
        value: the evidence as JSON; None where `failure` says why there is none.
        failure: what it was and what it said.
    """

    code: str
    files: tuple[BoundFile, ...]
    present: Mapping[str, str]
    absent: tuple[str, ...]
    budget: float | None
    partial: bool
    made: Made
    value: Any
    failure: tuple[str, str, str, str] | None

    def ends_here(self, seconds: float | None) -> bool:
        """Whether a budget of so many seconds would have measured no more."""
        if not self.partial:
            return True
        return self.budget is None or (seconds is not None and seconds <= self.budget)


class MeasuredFile:
    """What a file holds of a run, and what will be added to it.

    Attributes:
        path: the file.
        source: the file as it was read; None where it was not there.
        used: kind of evidence, in words -> when and where it was measured.
        unused: kind of evidence, in words -> why what the file holds of it was not used.
        absent: files that what was used was measured from, and that are not here.
        sampled: those that are here and too large to be compared whole.
        problems: parts that could not be read.
        is_written: whether something was added to it.
    """

    def __init__(
        self, path: Path, files: RunFiles, entries: Mapping[str, Entry], source: Source | None
    ) -> None:
        self.path = path
        self.source = source
        self.used: dict[str, Made] = {}
        self.unused: dict[str, str] = {}
        self.absent: dict[BoundFile, None] = {}
        self.sampled: dict[BoundFile, None] = {}
        self.problems: list[InputError] = []
        self.is_written = False
        self._entries = dict(entries)
        self._bindings = Bindings(files)
        self._taken: dict[type[Any], Any] = {}

    @classmethod
    def open(cls, path: Path, files: RunFiles, inspected: Iterable[Path]) -> MeasuredFile:
        """The file for a run; it need not exist.

        Args:
            path: the file.
            files: of the run.
            inspected: folders in which nothing is written.

        Raises:
            InputError: it lies in an inspected folder, or is there and is no such file.
        """
        try:
            target, is_there = path.resolve(), path.exists()
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(path, f"cannot be looked at ({error})", "name another file") from None
        for folder in inspected:
            if folder.is_dir() and target.is_relative_to(folder.resolve()):
                problem = f"lies inside the inspected folder {folder}, in which nothing is written"
                raise InputError(path, problem, "name a file elsewhere with --measured")
        if not is_there:
            return cls(path, files, {}, None)
        content, source = read_bytes(path, "measured_bytes")
        return cls(path, files, _parsed(path, _unpacked(path, content)), source)

    @property
    def not_here(self) -> tuple[BoundFile, ...]:
        """Every file that any of it was measured from, and that this machine lacks."""
        files = dict.fromkeys(one for entry in self._entries.values() for one in entry.files)
        return tuple(one for one in files if self._bindings.here(one) is Here.ABSENT)

    def take(self, kind: type[Any], run: KeptRun) -> Any | None:
        """Evidence of this kind as it was measured before; None where it has to be measured.

        Raises:
            Missing: it could not be measured then, for this reason.
            InputError: likewise.
        """
        entry = self._entries.get(_name(kind))
        if entry is None:
            return None
        why = self._why_not(entry, kind, run)
        if not why and not entry.ends_here(run.budget.seconds):
            # Less than could be measured now is better than nothing.
            whole = all(self._bindings.here(one) is Here.SAME for one in entry.files)
            if whole and run.allow_model:
                why = f"a budget of {entry.budget:g} s left a part of it out"
        if why:
            self.unused[words_for(kind)] = why
            self.used.pop(words_for(kind), None)
            self._taken.pop(kind, None)
            return None
        if entry.failure is not None:
            self._use(kind, entry)
            raise _raised(entry.failure)
        try:
            value = self._codec(run).from_json(entry.value, kind)
        except (UnfitValueError, ValueError, TypeError, RecursionError) as error:
            problem = f"what it holds as {words_for(kind)} is damaged ({error})"
            self.problems.append(InputError(self.path, problem, _REMEDY))
            return None
        for name, function in _functions(value):
            function.remake = _remaker(self, kind, name, run)
        self._use(kind, entry)
        self._taken[kind] = value
        return value

    def remembering(self, value: Any, run: KeptRun) -> Any:
        """Evidence that was measured now; its functions remember what they measure."""
        with suppress(*_UNKEPT):
            return self._codec(run).remembering(value)
        return value

    def write(self, measured: Mapping[type[Any], Any], run: KeptRun) -> None:
        """Add what was measured now, and write the file where that is anything.

        Args:
            measured: kind -> the evidence, or the exception that says why there is none.
            run: what it was measured of.

        Raises:
            InputError: it can't be written.
        """
        made = Made.here() if measured else None
        new: dict[str, Entry] = {}
        for kind, found in measured.items():
            if made is not None:
                with suppress(*_UNKEPT):
                    new[_name(kind)] = self._entry(kind, found, run, made, measured)
        self._entries |= new
        more = False
        for kind, value in self._taken.items():
            if any(function.is_new for _, function in _functions(value)):
                more = True
                old = self._entries[_name(kind)]
                kept = self._codec(run).to_json(value)
                self._entries[_name(kind)] = _changed(old, kept, run.budget.seconds, value)
        if new or more:
            self._write()

    def _entry(
        self,
        kind: type[Any],
        found: Any,
        run: KeptRun,
        made: Made,
        measured: Iterable[type[Any]],
    ) -> Entry:
        files: dict[BoundFile, None] = {}
        present: dict[str, str] = {}
        absent: list[str] = []
        paths = list(loaded_from(run.files))
        for other in run.made_with(kind):
            if other in self._taken:
                files |= dict.fromkeys(self._entries[_name(other)].files)
            elif (
                not is_models(other) and other not in measured and _name(other) not in self._entries
            ):
                there = run.get(other)
                paths += _paths(there)
                if there is None:
                    absent.append(_name(other))
                else:
                    present[_name(other)] = fingerprint(there)
        failed = isinstance(found, Exception)
        paths += [] if failed else _paths(found)
        files |= dict.fromkeys(self._bindings.bound(one) for one in dict.fromkeys(paths))
        left_out = str(found) == run.budget.spent if failed else _left_out(found)
        return Entry(
            code=code_version(kind),
            files=tuple(files),
            present=present,
            absent=tuple(absent),
            budget=run.budget.seconds,
            partial=bool(left_out),
            made=made,
            value=None if failed else self._codec(run).to_json(found),
            failure=_failure(found) if failed else None,
        )

    def _why_not(self, entry: Entry, kind: type[Any], run: KeptRun) -> str:
        """Why what the file holds is not of this run, as a clause; empty where it is."""
        if entry.code != code_version(kind):
            return "another version of mlxdoctor measured it"
        here = {one: self._bindings.here(one) for one in entry.files}
        for one, state in here.items():
            if state is Here.CHANGED:
                return f"{one.words} is not the file that it was measured from"
        if not any(state is Here.SAME and one.part in _OWN_PARTS for one, state in here.items()):
            return "neither the adapter nor the configuration that it was measured with is here"
        known = {(one.part, one.name) for one in entry.files}
        paths = list(loaded_from(run.files))
        for name, said in entry.present.items():
            other = _known(name)
            there = run.get(other) if other is not None else None
            if there is not None and fingerprint(there) != said:
                return f"the {words_for(type(there))} are not what they were when it was measured"
            paths += _paths(there)
        for path in paths:
            if self._bindings.place(path) not in known:
                return f"{path.name} was not there when it was measured"
        for name in entry.absent:
            other = _known(name)
            if other is not None and run.get(other) is not None:
                return f"there was no {words_for(other)} when it was measured"
        return ""

    def _use(self, kind: type[Any], entry: Entry) -> None:
        self.used[words_for(kind)] = entry.made
        self.unused.pop(words_for(kind), None)
        for one in entry.files:
            if self._bindings.here(one) is Here.ABSENT:
                self.absent[one] = None
            elif not one.whole:
                self.sampled[one] = None

    def _codec(self, run: KeptRun) -> Codec:
        def source_out(source: Source) -> Any:
            return [*self._bindings.place(source.path), source.sha256, source.note]

        def source_in(value: Any) -> Source | None:
            match value:
                case [str(part), str(name), None | str() as sha256, str(note)]:
                    if BoundFile.from_json([part, name, 0, "", True]):
                        path = self._bindings.path(part, name)
                        return None if path is None else Source(path, sha256, note)
            raise UnfitValueError("a file is needed")

        return Codec(source_out, source_in, run.need)

    def _write(self) -> None:
        files: dict[BoundFile, int] = {}
        for entry in self._entries.values():
            for one in entry.files:
                files.setdefault(one, len(files))
        content = {
            "format": FORMAT,
            "version": VERSION,
            "files": [one.to_json() for one in files],
            "measured": {
                name: {
                    **{one.name: getattr(entry, one.name) for one in fields(entry)},
                    "files": [files[one] for one in entry.files],
                    "made": vars(entry.made),
                }
                for name, entry in self._entries.items()
            },
        }
        text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if self.path.suffix == ".gz":
            text = compress(text, mtime=0)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, text)
            self.is_written = True
        except OSError as error:
            problem = f"cannot be written ({error.strerror}): what was measured is not kept"
            raise InputError(self.path, problem, "name another file with --measured") from None


def is_models(kind: type[Any]) -> bool:
    """Whether a kind is the models themselves, in memory: what is made with it is measured."""
    return bool(getattr(kind, "is_models", False))


def words_for(kind: type[Any]) -> str:
    """What a report calls a kind of evidence."""
    return str(getattr(kind, "kept_as", "") or kind.kind or kind.__name__)


def _name(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _known(name: str) -> type[Any] | None:
    """The kind of that name, if it is loaded: nothing is imported because a file names it."""
    module, _, own = name.partition(":")
    found = getattr(modules.get(module), own, None)
    if not isinstance(found, type) or not hasattr(found, "find") or not hasattr(found, "kind"):
        return None
    return None if is_models(found) else found


def _paths(evidence: Any) -> list[Path]:
    return [one.path for one in getattr(evidence, "sources", ()) if one.path.is_file()]


def _functions(value: Any) -> Iterator[tuple[str, OnDemand]]:
    for one in fields(value):
        function = getattr(value, one.name)
        if isinstance(function, OnDemand):
            yield one.name, function


def _left_out(value: Any) -> bool:
    """Whether something of it was not measured, for want of time."""
    refused = (
        isinstance(one, InputError)
        for _, function in _functions(value)
        for one in function.answers.values()
    )
    return bool(getattr(value, "left_out", "")) or any(refused)


def _changed(old: Entry, kept: Any, budget: float | None, value: Any) -> Entry:
    values = {one.name: getattr(old, one.name) for one in fields(old)}
    return Entry(**values | {"value": kept, "budget": budget, "partial": _left_out(value)})


def _remaker(file: MeasuredFile, kind: type[Any], name: str, run: KeptRun) -> Any:
    def remake() -> Any:
        try:
            return getattr(kind.find(run), name)
        except Missing as reason:
            problem = f"holds less of the {words_for(kind)} than is asked for"
            raise InputError(file.path, problem, str(reason)) from None

    return remake


def _failure(error: Exception) -> tuple[str, str, str, str]:
    if isinstance(error, InputError):
        return (
            "unusable",
            "" if error.path is None else str(error.path),
            error.problem,
            error.remedy,
        )
    exact = next(name for name, one in _FAILURES.items() if isinstance(error, one))
    return exact, "", str(error), ""


def _raised(failure: tuple[str, str, str, str]) -> Exception:
    kind, path, said, remedy = failure
    return InputError(path or None, said, remedy) if kind == "unusable" else _FAILURES[kind](said)


def _unpacked(path: Path, content: bytes) -> bytes:
    if not content.startswith(_GZIP):
        return content
    most = current().measured_bytes
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        text = unpacker.decompress(content, most + 1)
    except zlib.error as error:
        raise InputError(path, f"is a damaged .gz file ({error})", _REMEDY) from None
    if len(text) > most:
        raise exceeded(path, f"unpacks to more than {most:,} bytes", "measured_bytes")
    if not unpacker.eof:
        raise InputError(path, "is a .gz file that was cut off", _REMEDY)
    return text


def _parsed(path: Path, text: bytes) -> dict[str, Entry]:
    try:
        # Half of a surrogate pair is nothing that a terminal or a file takes.
        value = mended(json.loads(text, parse_constant=_no_number))
    except (ValueError, RecursionError):
        raise InputError(path, "is no file of measurements: it is not JSON", _REMEDY) from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InputError(path, "is JSON, and no file of measurements", _REMEDY)
    version = value.get("version")
    if type(version) is int and version > VERSION:
        problem = f"was written by a newer mlxdoctor (format {version}; this one reads {VERSION})"
        raise InputError(path, problem, "update mlxdoctor, or name another file with --measured")
    try:
        if version != VERSION or too_deep(value, _DEPTH):
            raise ValueError("version")
        files = [BoundFile.from_json(one) for one in value["files"]]
        return {str(name): _entry(one, files) for name, one in value["measured"].items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise InputError(path, "is a damaged file of measurements", _REMEDY) from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _entry(value: Any, files: Sequence[BoundFile]) -> Entry:
    match value:
        case {
            "code": str(code),
            "files": list(indices),
            "present": dict(present),
            "absent": list(absent),
            "budget": None | float() | int() as budget,
            "partial": bool(partial),
            "made": {
                "at": str(at),
                "system": str(system),
                "device": str(device),
                "versions": dict(versions),
            },
            "value": kept,
            "failure": failure,
        } if failure is None or _is_failure(failure):
            texts = [*present.values(), *absent, *versions.values()]
            places = [one for one in indices if type(one) is int and one >= 0]
            if len(places) == len(indices) and all(isinstance(one, str) for one in texts):
                return Entry(
                    code,
                    tuple(files[one] for one in places),
                    present,
                    tuple(absent),
                    budget,
                    partial,
                    Made(at, system, device, versions),
                    kept,
                    None if failure is None else (*failure,),
                )
    raise ValueError("an entry is needed")


def _is_failure(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(one, str) for one in value)
        and value[0] in {*_FAILURES, "unusable"}
    )
