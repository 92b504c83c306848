"""The rules on a corpus of scripts in many styles: every planted bug is found, nothing else is, and mends are sound.

`corpus/expected.toml` says what is wrong with each script. The scripts were written from the texts of the rules, not from their code.
"""

import ast
import shutil
import tomllib
from pathlib import Path

import pytest
from testbed.profiles import profile

from launcher.check.fixing import mend
from launcher.check.inference.card_calls import Card
from launcher.check.many_files import Settings, check_files, findings_of
from launcher.check.rules.table import RULES

CORPUS = Path(__file__).parent / "corpus"
EXPECTED = tomllib.loads((CORPUS / "expected.toml").read_text())


def settings(case):
    card = Card.of(profile(case["profile"]) if "profile" in case else None)
    return Settings(card, frozenset(RULES))


def codes(reports):
    return sorted({one.code for one in findings_of(reports)})


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_planted_is_found_and_nothing_else(name):
    """Each script alone, for its card."""
    case = EXPECTED[name]
    reports = check_files([CORPUS / name], settings(case), {}, lambda _: None)
    assert codes(reports) == case["codes"], case["why"]


@pytest.mark.parametrize("name", [name for name, case in EXPECTED.items() if case["codes"]])
def test_what_can_be_mended_is_and_stays_so(tmp_path, name):
    """The mended script is Python, a second mend changes nothing, and files without a problem keep their bytes."""
    case = EXPECTED[name]
    folder = tmp_path / "copy"
    (folder / ".git").mkdir(parents=True)
    shutil.copytree(
        CORPUS / name if (CORPUS / name).is_dir() else (CORPUS / name).parent, folder, dirs_exist_ok=True
    )
    script = folder / Path(name).name

    def check(paths, texts):
        return check_files(paths, settings(case), texts, lambda _: None)

    first = check([script], {})
    mended = mend(first, check)
    has_edits = {one.code for one in findings_of(first) if one.changes}
    assert not mended.notes
    assert bool(mended.after) == bool(has_edits)
    for path, text in mended.after.items():
        if path.suffix == ".py":
            ast.parse(text)
        assert len(_changed_lines(mended.before[path], text)) <= 12
        path.write_bytes(text)
    again = check([script], {})
    assert not [one for one in findings_of(again) if one.changes]
    assert not mend(again, check).after
    assert not has_edits & set(codes(again)) - {"LC601"}  # some arguments have no place of their own now


def _changed_lines(before, after):
    return set(before.splitlines()) ^ set(after.splitlines())


def test_every_rule_has_scripts_that_have_it():
    """And as many scripts are clean as are not, to within a tenth."""
    found = {code for case in EXPECTED.values() for code in case["codes"]}
    assert found | {"LC110"} == set(RULES)  # its model is a folder: test_rules.py makes one
    clean = sum(not case["codes"] for case in EXPECTED.values())
    assert abs(clean - len(EXPECTED) / 2) <= len(EXPECTED) / 10
