"""Prose stays plain: constructions that make a reader stop are counted, and their number does not rise. CONTRIBUTING has the rules."""

import io
import re
import tokenize

import pytest
from testbed.client import REPOSITORY

HARD = re.compile(
    r"""
    \b[Ww]hat(?:ever)?\s(?:is|was|are|were|it|they|a|an|the|has|had|its|one|others?|people|nobody)\b   # a clause as a noun
    | \b(?:[Ww]hoever|[Nn]obody|[Ss]omebody)\b
    | \b(?:is|are|was|were|be|been)\stold\b | \btells?\b
    | \b(?:go|goes|went|going|gone)\son\b                         # continue
    | \b(?:come|comes|came|bring|brings|brought)\s(?:\w+\s)?home\b # download
    | \b(?:is|are|was|were)\s(?:none|no)\b                        # missing; "not a …"
    | \bmeanwhile\b | \bbesides\b | \bas\sfar\sas\b
    | \bof\s(?:its|their|our)\sown\b | \bof\sours\b
    """,
    re.VERBOSE,
)
MAX_IN_CODE, MAX_IN_PAGES = 1.5, 1.0
"""Per 1,000 lines of `launcher/`, and per 1,000 words of the pages. Lower them when the numbers fall."""


def texts_of(source: str) -> str:
    """Return the comments, docstrings and messages of a module."""
    parts = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.COMMENT, tokenize.STRING)
    ]
    return "\n".join(parts)


def test_the_code_speaks_plainly():
    modules = [path.read_text() for path in (REPOSITORY / "launcher").rglob("*.py")]
    hits = sum(len(HARD.findall(texts_of(source))) for source in modules)
    assert 1000 * hits / sum(source.count("\n") for source in modules) <= MAX_IN_CODE


def test_the_pages_speak_plainly():
    pages = [*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"]
    prose = [re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text()) for page in pages]
    hits = sum(len(HARD.findall(text)) for text in prose)
    assert 1000 * hits / sum(len(text.split()) for text in prose) <= MAX_IN_PAGES


@pytest.mark.parametrize(
    "sentence", ["Whoever reads it is told what is there.", "The run goes on, and its files come home."]
)
def test_a_hard_sentence_is_found(sentence):
    assert len(HARD.findall(sentence)) >= 2
