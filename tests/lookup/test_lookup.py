"""The pages of *Look up* are those of today's code. `pytest tests/lookup --rewrite-cases` writes them anew."""

import ast
import re

import pytest
from lookup.fields import keys
from lookup.pages import DOCS, EXIT_CODES, MORE, PAGES, WRITTEN, keys_page
from lookup.rule_pages import RULE_PAGES
from lookup.variables import GIVEN, READ_HERE, READ_THERE, WITHIN
from testbed.client import REPOSITORY

from launcher.backends.kinds import PACKAGES, host_kind
from launcher.rental.provider import PROVIDERS
from launcher.rental.rental_settings import RentalSettings
from launcher.values.base import StrictModel

SOURCES = {path: path.read_text() for path in (REPOSITORY / "launcher").rglob("*.py")}
ENVIRONMENT = re.compile(r"environ|variables(?:\(\))?$")
VARIABLE = re.compile(r"_?[A-Z][A-Z0-9_]{2,}")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_that_of_the_code(request, name):
    """A key, code, class, card or kind that is added or changed is on it."""
    text = WRITTEN + PAGES[name]()
    if request.config.getoption("--rewrite-cases"):
        (DOCS / name).write_text(text)
    assert (DOCS / name).read_text() == text, "pytest tests/lookup --rewrite-cases"


def test_look_up_is_these_pages_alone():
    """In the navigation of the site."""
    line = re.search(r"(?m)^  - Look up: \[(.+)\]$", (REPOSITORY / "mkdocs.yml").read_text())
    assert line
    assert set(re.findall(r"[\w-]+\.md", line[1])) == PAGES.keys()


@pytest.mark.parametrize("name", RULE_PAGES)
def test_a_page_of_a_rule_is_that_of_the_code(request, name):
    """Its text and its example."""
    path = DOCS / "rules" / name
    text = WRITTEN + RULE_PAGES[name]()
    if request.config.getoption("--rewrite-cases"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, "pytest tests/lookup --rewrite-cases"


def test_every_rule_has_a_page_in_the_navigation(request):
    """And no page is left of a rule that was removed. --rewrite-cases writes the line of mkdocs.yml too."""
    names = ", ".join(f"rules/{name}" for name in RULE_PAGES)
    path = REPOSITORY / "mkdocs.yml"
    line = f"  - Rules of launch check: [{names}]"
    if request.config.getoption("--rewrite-cases"):
        path.write_text(re.sub(r"(?m)^  - Rules of launch check: .*$", line, path.read_text()))
    assert line in path.read_text().splitlines()
    assert {page.name for page in (DOCS / "rules").iterdir()} == RULE_PAGES.keys()


def test_a_key_without_a_docstring_is_found():
    """So that no key is on the page without its meaning."""

    class Table(StrictModel):
        new: int = 1

    with pytest.raises(AssertionError, match=r"Table\.new needs a docstring"):
        keys(Table)


def test_every_link_to_more_is_of_a_key():
    """A key that is renamed or removed leaves none behind."""
    page = keys_page()
    assert {name for name, link in MORE.items() if f"]({link})" not in page} == set()


def test_every_exit_code_has_a_row():
    """Every code that is written in the client, as a number or as an error's."""
    written = {
        node.value
        for path, text in SOURCES.items()
        if path.is_relative_to(REPOSITORY / "launcher" / "cli") or path.name == "errors.py"
        for code in exits(ast.parse(text))
        for node in ast.walk(code)
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value != 128  # 128 + a signal
    }
    assert written <= EXIT_CODES.keys()
    assert {1, 2, 3, 4, 5, 130} <= written


def exits(tree):
    """Yield the expressions of exit codes: `raise typer.Exit(3)`, `sys.exit(2)`, `exit_code = 4`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="Exit" | "exit"), args=[code]):
                yield code
            case ast.Assign(targets=[ast.Name(id="exit_code")], value=code):
                yield code
            case ast.AnnAssign(target=ast.Name(id="exit_code"), value=code) if code is not None:
                yield code


def test_every_variable_that_is_read_is_listed():
    """On the page, or among those that only launcher's own processes set."""
    listed = {*READ_HERE, *READ_THERE, *GIVEN, *WITHIN}
    read = {
        name
        for text in SOURCES.values()
        if "environ" in text or "variables" in text
        for name in variables(ast.parse(text))
    }
    read |= {name for text in SOURCES.values() for name in re.findall(r"\bLAUNCH_[A-Z_]+\b", text)}
    read |= {one.variable for one in settings_of_rentals()}
    assert {one for one in read if one not in listed and not one.startswith("PET_")} == set()


def settings_of_rentals():
    """The settings of each kind of host that rents machines."""
    found = [host_kind(kind).settings for kind in PACKAGES]
    found = [one for one in found if one is not None and issubclass(one, RentalSettings)]
    assert len(found) == len(PROVIDERS)
    return found


def variables(tree):
    """Yield the names that are looked up in a mapping of variables."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=where, attr="get" | "pop" | "setdefault"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                pass
            case ast.Subscript(value=where, slice=ast.Constant(value=str(name))):
                pass
            case ast.Compare(
                left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()], comparators=[where]
            ):
                pass
            case _:
                continue
        if ENVIRONMENT.search(ast.unparse(where)) and VARIABLE.fullmatch(name):
            yield name


def test_no_variable_is_listed_that_the_code_does_not_know():
    """A variable that is removed leaves the page too; `LAUNCH_TEXT` and the like are put together from two words."""
    texts = "\n".join(SOURCES.values())
    listed = {*READ_HERE, *READ_THERE, *GIVEN} - {"LAUNCH_TEXT", "LAUNCH_STATE", "LAUNCH_REASON"}
    assert {one for one in listed if one.rstrip("*") not in texts} == set()
