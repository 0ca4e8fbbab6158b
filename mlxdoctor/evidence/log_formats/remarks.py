"""What a log says in lines that are no reports: scores, what was skipped, and texts that repeat.

It is kept as it stands there, to be quoted.
"""

import re

from mlxdoctor.engines.text import distinct_n, words
from mlxdoctor.evidence.logs.log_format import LineFormat
from mlxdoctor.evidence.logs.series import MAX_HEADER, Remark

#: A score and its figure: `Accuracy: 60%`, `pass@1 (greedy): 116/164`, `'rouge1': np.float64(0.0)`.
_SCORE = re.compile(
    r"(?<![-\w])(?:accuracy|exact[ _]match|f1(?!\d)|rouge-?(?:\d|l(?:sum)?)|bleu(?:-?\d)?"
    r"|bert_?score|pass@\d|win[ _]rate|correct|solved)(?:[ _]score)?['\"]?(?:\s\([^)]{0,40}\))?"
    r"\s{0,9}[:=|]?\s{0,9}(?:np\.float\d\d\()?[-+*]{0,3}\d"
    # `Validation bpb: 3.3`, `Execution match: 34/100 (34.0%)`.
    r"|\b(?:validation|val|eval)[ _/](?!data|set|split|size|tokens|rows|examples|steps|batch)"
    r"\w{2,12}\s{0,4}[:=]\s{0,9}\d"
    r"|:\s{1,9}\d{1,6}/\d{1,6}\s\(\d{1,3}(?:\.\d{1,3})?%\)",
    re.IGNORECASE,
)
_SKIPS = re.compile(r"\b(?:SKIP|[Ss]kipp(?:ed|ing))\b(?!\s*[=:(])")
#: Of batches, of rows and of updates; other programs skip, too.
_OF_TRAINING = re.compile(
    r"\b(?:step|batch|update|iter|row|sample|example|group|prompt|reward)", re.IGNORECASE
)
_FIGURE = re.compile(r"\d+")
#: Words of a text that can repeat itself, and the share of its pairs of words that are different
#: below which it does: 0.9 in a page of prose.
WORDS, DIFFERENT = 20, 0.4
#: Share of letters and blanks that a text has.
TEXT = 0.85
#: Characters that are kept.
MAX_SAID = 160


class Remarks(LineFormat):
    """What nothing else has read."""

    priority = 110
    example = (
        "Step 10 | loss 2.5\nStep 20 | loss 2.25\nAccuracy after the training: 11/20\n"
        "step 7 SKIP: all rewards are equal\n"
    )

    def read(self, number: int, line: str) -> bool:
        if "kip" in line.lower() and _SKIPS.search(line) and _OF_TRAINING.search(line):
            known = self.notes.skips
        elif _SCORE.search(line):
            known = self.notes.scores
        elif len(line) > 4 * WORDS and self._repeats(line):
            known = self.notes.repetitive
        else:
            return False
        # How a text that repeats itself ends shows it best.
        said = line[-MAX_SAID:] if known is self.notes.repetitive else line[:MAX_SAID]
        form = _FIGURE.sub("", said)
        if form in known:
            known[form].lines.append(number)
            known[form].text = said.strip()
        elif len(known) < MAX_HEADER:
            known[form] = Remark(said.strip(), said.strip(), [number])
        return True

    def _repeats(self, line: str) -> bool:
        # A table, or a list of names, is no text.
        is_text = sum(sign.isalpha() or sign == " " for sign in line) > TEXT * len(line)
        said = words(line) if is_text else []
        return len(said) >= WORDS and distinct_n(said, 2) <= DIFFERENT
