"""The arguments that a rule calls removed are absent from the libraries that are installed, and the new names are there."""

import dataclasses
import importlib
import inspect
import re

import pytest

from launcher.agent.diagnosis.library_changes import ARGUMENTS
from launcher.check.rules.removed_argument import DATED, REMOVED

pytestmark = pytest.mark.training

TAKERS = [
    "transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments", "transformers.Trainer",
    "transformers.Seq2SeqTrainer", "trl.SFTConfig", "trl.DPOConfig", "trl.GRPOConfig", "trl.RewardConfig", "trl.KTOConfig",
    "trl.SFTTrainer", "trl.DPOTrainer", "trl.GRPOTrainer", "trl.RewardTrainer", "trl.KTOTrainer",
]  # fmt: skip


@pytest.mark.parametrize("name", TAKERS)
def test_the_table_is_that_of_the_signatures(name):
    """A library that takes one of them again, or renames another, fails here."""
    library, _, taker = name.partition(".")
    module = importlib.import_module(library)
    assert module.__version__ == DATED[library]
    cls = getattr(module, taker)
    takes = (
        {one.name for one in dataclasses.fields(cls)}
        if dataclasses.is_dataclass(cls)
        else set(inspect.signature(cls.__init__).parameters)
    )
    removed = frozenset().union(*(names for pattern, names in REMOVED if pattern.fullmatch(name)))
    assert removed
    assert not removed & takes
    for argument in removed:
        new = (
            "max_length"
            if argument == "max_seq_length" and taker.endswith("Config")
            else ARGUMENTS[argument].replacement
        )
        if re.fullmatch(r"\w+", new):
            assert new in takes, argument
