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


@pytest.mark.parametrize("mutant", prove.mutants(), ids=lambda one: one.path.stem)
def test_a_mutant_fits_the_code_and_names_a_test_that_is_there(mutant, copy):
    """A patch that no longer applies proves nothing."""
    path, _, name = mutant.test.partition("::")
    assert re.search(rf"^def {re.escape(name.partition('[')[0])}\(", (copy / path).read_text(), re.MULTILINE)
    assert prove.applies(mutant, copy)
    assert prove.applies(mutant, copy, undo=True)
