"""The tasks of the real split: their rows, out of small texts of our own."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fixtures.lab.real import study, tasks
from fixtures.lab.real.tasks import ROWS, TASKS, Task, digest, split, write_task
from fixtures.lab.real.texts import prose, records
from fixtures.lab.real.texts.sources import Row, chat, completion, cut_at_paragraph
from fixtures.lab.study import main

Debian = Callable[[str, str], None]


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Debian:
    """Writes a file of a package; every package is the same folder."""
    for module in (prose, records):
        monkeypatch.setattr(module, "debian", lambda _: tmp_path)

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    return write


def test_both_halves_have_every_format_and_both_kinds_of_answers() -> None:
    for half in ("dev", "test"):
        own = [task for task in TASKS.values() if task.half == half]
        assert len(own) >= 4
        assert {task.format for task in own} == {"chat", "completions", "text"}
        assert {task.entropy for task in own} == {"low", "high"}


def test_rows_are_split_without_overlap_and_always_alike() -> None:
    rows = [completion(f"question {number % 900}", str(number)) for number in range(1000)]
    parts = split(rows, "name")
    assert [len(part) for part in parts.values()] == list(ROWS)
    asked = [row["prompt"] for part in parts.values() for row in part]
    assert len(set(asked)) == len(asked)
    assert split(rows, "name") == parts
    assert split(rows, "another") != parts


def test_of_few_rows_a_part_is_kept() -> None:
    rows: list[Row] = [{"text": str(number)} for number in range(100)]
    assert [len(part) for part in split(rows, "name").values()] == [72, 14, 14]


def test_a_task_is_written_as_mlx_lm_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        chat(f"Is {number} even?", "yes", "And odd?", "no", system="Say.") for number in range(9)
    ]
    task = Task("parity", "dev", "chat", "low", "numbers", lambda: rows)
    monkeypatch.setattr(tasks, "TASKS", {"parity": task})
    write_task("parity", tmp_path)
    lines = (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()
    roles = [message["role"] for message in json.loads(lines[0])["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    first = digest(tmp_path)
    write_task("parity", tmp_path)
    assert digest(tmp_path) == first


def test_the_command_says_how_large_the_rows_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [completion(str(number), "x" * 1024) for number in range(9)]
    task = Task("numbers", "dev", "completions", "low", "numbers", lambda: rows)
    monkeypatch.setattr(tasks, "TASKS", {"numbers": task})
    monkeypatch.setenv("MLXDOCTOR_REAL", str(tmp_path))
    assert main(study.STUDY, ["tasks", "numbers"]) == 0
    assert capsys.readouterr().out.startswith("numbers: 9 KiB in ")


def test_text_is_cut_between_paragraphs() -> None:
    assert cut_at_paragraph("one\n\ntwo\n\nthree", 9) == "one\n\ntwo"
    assert cut_at_paragraph("one\n\ntwo", 8) == "one\n\ntwo"
    assert cut_at_paragraph("one\n\ntwo", 2) == ""


def noun(word: str, file: str, relations: int, gloss: str) -> str:
    return f"0001 {file} n 01 {word} 0 {relations:03d} {'@ 0002 n 0000 ' * relations}| {gloss}  \n"


def test_nouns_that_few_relations_have_are_left_out(debian: Debian) -> None:
    debian(
        "usr/share/wordnet/data.noun",
        "  1 This is a licence.\n"
        + noun("ice_cream", "13", 5, 'frozen dessert of cream and sugar; "he ate it"')
        + noun("rarity", "13", 3, "something that few people have ever heard of")
        + noun("Paris", "15", 9, "the capital and largest city of the French")
        + noun("lion", "05", 9, "large gregarious predatory feline of Africa"),
    )
    assert records.glosses() == [
        chat('What does the noun "ice cream" mean?', "frozen dessert of cream and sugar"),
        chat('What does the noun "lion" mean?', "large gregarious predatory feline of Africa"),
    ]


def test_an_entry_of_a_changelog_is_asked_for_as_fields(debian: Debian) -> None:
    entry = (
        "dpkg (1.2) unstable; urgency=low\n\n  * Don't crash. Closes: #12345, #678\n"
        "    Thanks to A B <a@b.org>.\n\n -- C D <c@d.org>  Mon, 01 Jun 2020 10:00:00 +0200\n"
    )
    for package in records.CHANGELOG_PACKAGES:
        debian(f"usr/share/doc/{package}/changelog", entry)
    row = records.releases()[0]
    assert json.loads(str(row["completion"])) == {
        "package": "dpkg",
        "version": "1.2",
        "urgency": "low",
        "by": "C D",
        "day": "2020-06-01",
        "closes": [12345, 678],
    }
    assert "@" not in str(row["prompt"])


def test_a_manual_page_is_read_without_its_marks() -> None:
    roff = (
        ".PP\nThe\n.BR accept ()\nsystem call is \\fIused\\fP here.\n.TS\nl l.\na b\n.TE\n"
        '.\\" A comment\n.PP\nA page\\-wide\n.I note\nends.\n'
    )
    assert prose.plain(roff) == "The accept() system call is used here.\n\nA page-wide note ends."


def test_pod_is_read_without_its_marks() -> None:
    pod = "X<sort> See L<the manual|perlfunc/sort> and C<< a <=> b >>.\n\n=over 4\n\n=item B<one>\n"
    assert prose.without_marks(pod) == "See perlfunc/sort and a <=> b.\n\none"


def test_turns_of_a_scene_begin_with_others_and_end_with_the_one_who_answers() -> None:
    scene = [("A", "me first"), ("B", "hello"), ("C", "hi"), ("A", "well"), ("A", "so"), ("B", "?")]
    assert prose.turns_of(scene, "A") == ["B: hello\nC: hi", "well\nso"]
    assert prose.turns_of(scene, "C") == ["A: me first\nB: hello", "hi"]


def test_a_scene_of_a_campaign_is_read_message_by_message(debian: Debian, tmp_path: Path) -> None:
    debian(
        "data/scenarios/01.cfg",
        '[event]\n[message]\n speaker=narrator\n message= _ "Dawn."\n[/message]\n'
        '[message]\n speaker="Old Man"\n message= _ "Who <i>goes</i> there?"\n[/message]\n'
        '[message]\n speaker=unit\n message= _ "Nobody."\n[/message]\n'
        '[message]\n speaker=Kai\n image=x.png\n message= _ "A friend of the court."\n[/message]\n',
    )
    (scene,) = [one for one in prose.scenes(tmp_path / "data/scenarios/01.cfg") if one]
    assert scene == [("Old Man", "Who goes there?"), ("Kai", "A friend of the court.")]


def test_what_python_prints_ends_at_a_blank_line() -> None:
    documentation = (
        "Add.\n\n>>> from a import b\n\nThis says how.\n\n>>> b(1)\n2\n>>> b(\n"
        "... 2)  # doctest: x\n3\n4\n\nDone.\n"
    )
    assert list(records.examples(documentation)) == [
        ("from a import b\nb(1)", "2"),
        ("b(\n2)  # doctest: x", "3\n4"),
    ]


def test_steps_of_a_page_are_numbered() -> None:
    page = ElementTree.fromstring(
        '<page xmlns="http://projectmallard.org/1.0/"><p>To print:</p><steps><item>'
        "<p>Open\n it.</p></item><item><p>Press <gui>Print</gui>.</p></item></steps>"
        "<note><p>Wait.</p></note>"
        "<section><p>Not this.</p></section></page>"
    )
    assert prose.paragraphs(page) == ["To print:", "1. Open it.\n2. Press Print.", "Wait."]


def test_characters_are_no_more_of_one_kind_than_allowed(debian: Debian) -> None:
    capitals = "".join(f"{at:04X};LATIN CAPITAL LETTER {at};Lu;0\n" for at in range(500))
    rest = "0030;DIGIT ZERO;Nd;0\n3400;<CJK Ideograph, First>;Lo;0\n4E00;CJK LETTER;Lo;0\n"
    debian("usr/share/unicode/UnicodeData.txt", capitals + rest)
    rows = records.characters()
    assert len(rows) == records.UNICODE_MOST + 1
    assert completion("What kind of character is DIGIT ZERO?", "decimal digit") in rows


def test_entries_of_the_dungeon_that_are_programs_are_left_out(debian: Debian) -> None:
    debian(
        "usr/share/crawl/dat/descript/quotes.txt",
        "%%%%\n__c_suffix\n\nno\n%%%%\n# a note\nrat\n\nHow now! a _rat_?\n%%%%\nbat\n\n<rat>\n"
        "%%%%\ncat\n\n{{ return 1 }}\n",
    )
    assert list(prose.entries("quotes")) == [("rat", "How now! a rat?")]


def test_passages_are_whole_paragraphs_of_prose(debian: Debian) -> None:
    passage = ("The rule is that a package says what it needs, and no more than that. " * 5).strip()
    for name in prose.POLICY_FILES:
        debian(f"usr/share/doc/debian-policy/{name.removesuffix('.gz')}", "")
    for name in prose.POLICY_FILES:
        packed = gzip.compress(
            f"1. Title\n=====\n\n{passage}\n\n* list\n\n{passage}\n\n{passage}\n".encode()
        )
        path = prose.debian("debian-policy") / "usr/share/doc/debian-policy" / name
        path.write_bytes(packed)
    texts = [str(row["text"]) for row in prose.policies()]
    assert texts
    assert set(texts) == {f"{passage}\n\n{passage}"}
    assert all(prose.POLICY_LENGTH[0] <= len(text) <= prose.POLICY_LENGTH[1] for text in texts)
