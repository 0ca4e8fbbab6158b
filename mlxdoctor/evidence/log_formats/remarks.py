"""What a log says in lines that are no reports: scores, what was skipped, and texts that repeat.

It is kept as it stands there, to be quoted; so are headings, which name the runs below them.
"""

import re

from mlxdoctor.engines.text import distinct_n, words
from mlxdoctor.evidence.logs.log_format import LineFormat
from mlxdoctor.evidence.logs.metric_names import SCORES

#: A score and its figure: `Accuracy: 60%`, `pass@1 (greedy): 116/164`, `'rouge1': np.float64(0.0)`;
#: `Validation bpb: 3.3`; and `Execution match: 34/100 (34.0%)`.
_SCORE = re.compile(
    rf"(?<![-\w])(?:{SCORES.replace('_', '[ _]')}|bert_?score|pass@\d|correct|solved)"
    r"(?:[ _]score)?['\"]?(?:\s\([^)]{0,40}\))?(?:\s{0,9}[:=|]\s{0,9}|\s{1,9})"
    r"(?:np\.float\d\d\()?[-+*]{0,3}\d"
    r"|\b(?:validation|val|eval)[ _/](?:bpb|bits\w{0,12}|ppl|perplexity|score|reward)\s{0,4}"
    r"[:=]\s{0,9}\d"
    r"|\b(?:match|success|passed|final|right):\s{1,9}\d{1,6}/\d{1,6}\s\(\d"
    r"|\b\d{1,6}/\d{1,6}\s(?:succeeded|passed|correct|solved|right)\b",
    re.IGNORECASE,
)
_SETTING = re.compile(r"\bweights?\b", re.IGNORECASE)
#: DeepSpeed counts updates that it skipped, as it does with a few at the start: not with all.
_SKIPS = re.compile(r"\b(?:SKIP|[Ss]kipp(?:ed|ing))\b(?!\s*[=:(])|\bstep=([1-9]\d*), skipped=\1\b")
#: Of batches, of rows and of updates; other programs skip, too.
_OF_TRAINING = re.compile(
    r"\b(?:step|batch|update|iter|row|sample|example|group|prompt|reward)", re.IGNORECASE
)
#: `== Training with LoRA ==`, `## rank 8`, `When r = 8, lr = 2e-4`.
_HEADING = re.compile(
    r"^\s{0,4}(?:#{1,6}\s|[-=*─━~]{2,80}\s).{0,60}\b(?:train|fine-?tun|q?lora\b|dora\b|sft\b|dpo\b)"
    r"|\b(?:fold|run|experiment|trial|seed|stage|phase|variant|round|attempt|lr|learning[ _]rate"
    r"|rank|r)\s?[:=#]?\s?\$?\d",
    re.IGNORECASE,
)
#: A path names a run that is over as well.
_PATH = re.compile(r"/\w[^/\s]{0,80}/")
#: Words of a text that can repeat itself, and the share of its pairs of words that are different
#: below which it does: 0.9 in a page of prose.
WORDS, DIFFERENT = 20, 0.4
#: Share of letters and blanks that a text has.
TEXT = 0.85
#: Characters that are kept, and of those before a word for what is skipped.
MAX_SAID, BEFORE = 160, 40


class Remarks(LineFormat):
    """What nothing else has read."""

    priority = 110
    example = (
        "Step 10 | loss 2.5\nStep 20 | loss 2.25\nAccuracy after the training: 11/20\n"
        "step 7 SKIP: all rewards are equal\n"
    )

    def read(self, number: int, line: str) -> bool:
        skips = _SKIPS.search(line) if "kip" in line.lower() else None
        if skips is not None and _OF_TRAINING.search(line):
            known = self.notes.skips
            # A progress bar, or the time, may stand before it.
            line = line[max(skips.start() - BEFORE, 0) :]
        elif _SCORE.search(line) and not _SETTING.search(line):
            known = self.notes.scores
        elif len(line) > 4 * WORDS and self._repeats(line):
            known = self.notes.repetitive
        else:
            if len(line) <= MAX_SAID and _HEADING.search(line) and not _PATH.search(line):
                self.notes.headings.append((number, line.strip(" #=*-─━~\t")))
            return False
        # How a text that repeats itself ends shows it best.
        said = line[-MAX_SAID:] if known is self.notes.repetitive else line[:MAX_SAID]
        self.notes.remark(known, number, said)
        return True

    def _repeats(self, line: str) -> bool:
        # A table, or a list of names, is no text.
        is_text = sum(sign.isalpha() or sign == " " for sign in line) > TEXT * len(line)
        units = words(line) if is_text else []
        return len(units) >= WORDS and distinct_n(units, 2) <= DIFFERENT
