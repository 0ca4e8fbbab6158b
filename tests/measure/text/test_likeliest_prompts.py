"""The prompt of another row that an answer fits best."""

from mlxdoctor.measure.text.likeliest_prompts import likeliest_prompts

#: Tokens 1 and 2 are in all prompts and say nothing.
PROMPTS = [[1, 2, 10, 11], [1, 2, 20, 21], [1, 2, 30, 31], [1, 2, 10, 40]]


def test_rare_tokens_tell() -> None:
    answers = [[1, 20, 5], [30, 31, 2], [7, 8, 9], [11, 6]]
    assert likeliest_prompts(PROMPTS, answers) == [(0, 1), (1, 2), (3, 0)]


def test_the_own_prompt_is_none_of_the_others() -> None:
    assert likeliest_prompts([*PROMPTS, PROMPTS[1]], [[], [20], [], [], [21]]) == []


def test_a_prompt_that_quotes_the_answer_is_the_next_turn() -> None:
    answer = list(range(50, 60))
    quoting = [1, 2, *answer, 3]
    assert likeliest_prompts([*PROMPTS, quoting], [answer]) == []
    assert likeliest_prompts([*PROMPTS, [1, 2, *answer[:6]]], [answer]) == [(0, 4)]
