"""Whether an answer is one token, a handful of tokens, or a loop.

The checks ask it of a run's answers.
"""

from collections.abc import Hashable, Sequence

from mlxdoctor.engines.text import distinct_n, run_share, tail_loop, top_share

#: Tokens of the shortest answer and of the shortest loop that are judged: shorter ones can be one
#: repeated token by chance; of the shortest whose variety is measured; and the first tokens in
#: which distinct ones are counted, because in longer text words recur.
SHORTEST, LONG, COUNTED = 8, 16, 64
#: Share of an answer that is one token, or in runs of four or more of one: a few tokens may precede
#: the collapse.
SINGLE = 0.9
#: Length from which one answer of a single token is proof without a second prompt: no right answer
#: repeats a token 24 times, unless the expected one does (0 of 24 fixture runs' sound answers).
ALONE = 24
#: Share of one token from which an answer counts as a handful of tokens: a comma makes up 0.12 of
#: the fixtures' tokens.
DOMINANT = 0.5
#: Distinct tokens over tokens up to which an answer is poor: 0.35 at least in sound fixture runs,
#: 0.02 to 0.19 in collapsed ones.
DISTINCT = 0.25
#: Share of 4-grams that repeat an earlier one (Welleck et al. 2020, seq-rep-4): 0.44 in greedy text
#: of GPT-2.
REPEATED = 0.5
#: Least share of an answer that the loop at its end covers, and least number of times that it
#: repeats: twice is emphasis.
LOOP, PERIODS = 0.5, 3

#: An answer before its end token: token ids, or words where those are unknown.
Content = Sequence[Hashable]


def is_single(content: Content) -> bool:
    """Whether one token, or runs of four or more equal tokens, make up nearly all of it."""
    share = max(top_share(content)[1], run_share(content))
    return len(content) >= SHORTEST and share >= SINGLE


def is_few_tokens(content: Content) -> bool:
    """Whether a handful of tokens makes it up, or one of them half of it."""
    is_poor = distinct_n(content[:COUNTED], 1) <= DISTINCT or top_share(content)[1] >= DOMINANT
    return (len(content) >= LONG and is_poor) or is_single(content)


def is_loop(content: Content) -> bool:
    """Whether it ends in a loop, or repeats itself all over, and is more than one token."""
    period, covered = tail_loop(content)
    loops = period > 0 and covered >= max(SHORTEST, LOOP * len(content), PERIODS * period)
    repeats = len(content) >= LONG and 1.0 - distinct_n(content, 4) >= REPEATED
    return (loops or repeats) and not is_single(content)
