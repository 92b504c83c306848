"""No card loses a rung that it had before memory was counted in the driver's bytes: that may change a micro-batch only."""

import tomllib
from pathlib import Path

import pytest
from planning.test_second_ladder import llama
from testbed.profiles import profile

from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.values.model import read_model
from launcher.values.precision import SHORT

BEFORE = tomllib.loads(Path(__file__).with_name("rungs_before.toml").read_text())
SIZES = {
    "1B": llama(32000, 2048, 5632, 22, 32, 4),
    "3B": llama(128256, 3072, 8192, 28, 24, 8, is_tied=True),
    "7B": llama(32000, 4096, 11008, 32, 32, 32),
    "8B": llama(128256, 4096, 14336, 32, 32, 8),
}


def rungs(card, method, size):
    model = read_model({**SIZES[size], "dtype": "bfloat16"})
    for rung in ladder(LadderInputs(profile(card), method, model)).rungs:
        is_tf32 = rung.tf32 and rung.autocast_dtype is None
        compute = "tf32" if is_tf32 else SHORT[rung.autocast_dtype or "float32"]
        yield f"{compute}/{SHORT[rung.base_dtype]}"


@pytest.mark.parametrize("card", BEFORE)
def test_no_card_loses_a_rung(card):
    """In their order."""
    for method, sizes in BEFORE[card].items():
        for size, before in sizes.items():
            now = list(rungs(card, method, size))
            assert [rung for rung in now if rung in before] == before, (card, method, size, now)
