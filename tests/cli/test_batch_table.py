"""What a batch's table and its JSON say of a loss that is not finite: its name, as anywhere else."""

import pytest

from launcher.cli.batch_table import cells, shape
from launcher.runs.batch_status import ItemRow
from launcher.runs.item_view import ItemView
from launcher.values.record import Event


@pytest.mark.parametrize("loss", [float("nan"), "nan"])
def test_a_loss_of_nan_is_shown_as_that(loss):
    """From a run that is followed, where it is a number, and from the record of one, where it is a word."""
    row = ItemRow("i1", None, "lab", "running", 3, 5, loss, None, None, {})
    assert cells(row)[5] == "nan"
    assert shape(row).model_dump(mode="json")["loss"] == "nan"


def test_a_followed_item_keeps_no_finite_loss_after_nan():
    """The last value counts."""
    view = ItemView(lambda _text: None)
    for step, loss in enumerate((1.5, "nan"), start=1):
        view._take(Event(version=1, kind="metric", step=step, time=0.0, values={"loss": loss}))
    assert (view.step, str(view.loss)) == (2, "nan")
