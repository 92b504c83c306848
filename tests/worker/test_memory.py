"""Estimated memory beside a measured peak: some rows of tests/bench/MEMORY.md, of which `make memory` measures all."""

import pytest
from bench import memory
from bench.memory import IN_CI, ROWS

pytestmark = pytest.mark.training


@pytest.mark.long
@pytest.mark.slow(reason="twelve trainings")
def test_an_estimate_is_within_five_percent_of_the_measured_peak():
    """Full, LoRA and QLoRA at three sizes; autocast over both bases, checkpointing, a teacher."""
    found = memory.measured(list(IN_CI))
    far = [
        (ROWS[row].title, one) for row, one in zip(IN_CI, found, strict=True) if not 0.95 <= one.ratio <= 1.05
    ]
    assert far == []


def test_every_row_of_the_table_is_within_five_percent_and_as_the_estimate_is_now():
    """What `make memory` measured last, beside what is estimated today."""
    lines = memory.TABLE.read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert len(rows) == len(ROWS)
    for row, cells in zip(ROWS, rows, strict=True):
        title, _, _, estimated, measured, _ = cells
        assert title == row.title
        assert float(estimated) == pytest.approx(memory.estimate(row), abs=0.06), title
        assert 0.95 <= float(estimated) / float(measured) <= 1.05, title
