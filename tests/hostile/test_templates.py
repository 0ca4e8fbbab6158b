"""Chat templates made to fill the memory or the day: stopped, and small ones unharmed."""

import sys

import pytest

from mlxdoctor.evidence.chat_template import ChatTemplate, TemplateFailure, TemplateTooMuch
from mlxdoctor.safety.reading_limits import using
from tests.processes import python

CHAT = [{"role": "user", "content": "x" * 1000}, {"role": "assistant", "content": "y"}]
LOOP = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}"

#: Jinja's own bounds, ours for numbers, the memory, the time: one of each kind that fills them.
HOSTILE = (
    "{{ 'a' * 10**10 }}",
    "{{ 2 ** (10**10) }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    LOOP + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    LOOP + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    LOOP + "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
    "{% set ns = namespace(x=7) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ '%09999999999d' % 1 }}",
    "{{ messages|tojson(indent=10**9) }}",
)

ALONE = """
import sys
from mlxdoctor.evidence.chat_template import ChatTemplate, TemplateFailure
for template in sys.stdin.read().split("\\0"):
    try:
        ChatTemplate.compile(template, {}).render([{"role": "user", "content": "x" * 1000}])
        print("rendered", template)
    except TemplateFailure:
        pass
# Not getrusage: its peak is inherited from the process that started this one.
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no limit of a process's addresses")
def test_no_template_fills_the_memory() -> None:
    """Each is stopped by its own limits, and together they take little."""
    answer = python("-c", ALONE, input="\0".join(HOSTILE), check=True, timeout=300)
    *broken, peak = answer.stdout.splitlines()
    assert not broken
    # Megabytes: the process itself, and what one template may take.
    assert int(peak) < 500


@pytest.mark.parametrize(
    ("template", "limit"),
    [
        ("{{ 'a' * 10**10 }}", "template_characters"),
        (LOOP + "{% set ns.x = ns.x * 8 %}{% endfor %}", "template_characters"),
        ("{{ 2 ** 99999 }}", None),
        ("{{ 7 * 2 ** 4095 }}", None),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
         "template_seconds"),
    ],
)  # fmt: skip
def test_a_template_that_takes_too_much_is_told_the_limit(template: str, limit: str | None) -> None:
    if sys.platform != "linux" and limit == "template_characters":
        pytest.skip("no limit of a process's addresses")
    problem = f"limit {limit}" if limit else "a number of over 4,096 bits"
    with using(["template_seconds=1"]), pytest.raises(TemplateTooMuch, match=problem):
        ChatTemplate.compile(template, {}).render(CHAT)


ESCAPES = (
    "{{ cycler.__init__.__globals__.os.popen('touch owned').read() }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{% include '/etc/passwd' %}",
)


@pytest.mark.parametrize("template", ESCAPES)
def test_the_sandbox_holds(template: str) -> None:
    try:
        text = ChatTemplate.compile(template, {}).render(CHAT)
    except TemplateFailure:
        return
    assert not text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 2 ** 1000 // 2 ** 999 }}", "2"),
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a * b }},{% endfor %}", "2,12,"),
        ("{{ {'a': [1]}|tojson }}{{ {'a': 1}|tojson(indent=1) }}", '{"a": [1]}{\n "a": 1\n}'),
        ("{{ {'a': '\u00e9'}|tojson(true) }}", r'{"a": "\u00e9"}'),
        ("{{ raise_exception is defined }}{{ strftime_now('%%') }}", "True%"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') }}{{ messages|length }}", "<a>2"),
    ],
)
def test_ordinary_templates_are_as_they_were(template: str, text: str) -> None:
    assert ChatTemplate.compile(template, {}).render(CHAT) == text


def test_the_limits_can_be_raised() -> None:
    template = "{{ 'a' * 5000000 }}"
    with pytest.raises(TemplateFailure, match="limit template_characters"):
        ChatTemplate.compile(template, {}).render(CHAT)
    with using(["template_characters=8M"]):
        assert len(ChatTemplate.compile(template, {}).render(CHAT)) == 5_000_000
