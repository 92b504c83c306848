"""The mutants still fit: what each must break is shown by `make mutants`, which takes minutes."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("prove", Path(__file__).with_name("prove.py"))
prove = importlib.util.module_from_spec(_SPEC)
sys.modules["prove"] = prove
_SPEC.loader.exec_module(prove)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The work tree, to be broken."""
    return prove.copy_to(tmp_path_factory.mktemp("mutants"))


def flaw(mutant, copy):
    """Why a mutant proves nothing; empty if it does."""
    path, _, name = mutant.test.partition("::")
    heading = rf"^def {re.escape(name.partition('[')[0])}\("
    if not re.search(heading, (copy / path).read_text(), re.MULTILINE):
        return f"no test {mutant.test}"
    is_fitting = prove.applies(mutant, copy) and prove.applies(mutant, copy, undo=True)
    return "" if is_fitting else "the patch no longer applies"


def test_each_mutant_fits_the_code_and_names_a_test_that_is_there(copy):
    """A patch that no longer applies proves nothing."""
    flaws = {mutant.path.stem: flaw(mutant, copy) for mutant in prove.mutants()}
    assert len(flaws) > 1
    assert not {name: why for name, why in flaws.items() if why}
