"""Values: what a card can do follows from what it is."""

import pytest
from pydantic import ValidationError
from testbed.profiles import profile, profiles

from launcher.agent.record import rundir
from launcher.base.text import hours_text
from launcher.values.plan import Split
from launcher.values.record import TERMINAL


@pytest.mark.parametrize(
    ("name", "bf16", "tensor_cores"),
    [
        ("titan_rtx", False, True),
        ("p100", False, False),
        ("l40s", True, True),
        ("a100_40gb", True, True),
        ("t4", False, True),
        ("h100", True, True),
        ("h200", True, True),
    ],
)
def test_what_a_card_can_do_follows_from_its_capability(name, bf16, tensor_cores):
    """bf16 wants 8.0 and tensor cores 7.0, whatever torch says."""
    card = profile(name)
    assert (card.has_bf16, card.has_tf32, card.has_fp16_tensor_cores) == (bf16, bf16, tensor_cores)


def test_every_profile_has_a_source_for_its_rates():
    """A figure without a source is a rumour."""
    assert all(len(one.peak.source) > 10 for one in profiles().values() if one.peak)


def test_cards_of_one_name_are_told_apart_by_memory():
    """An A100 of 40 GB is not one of 80."""
    name = "NVIDIA A100-SXM4-40GB"
    assert profile("a100_40gb").is_reported_as(name, 40339)
    assert not profile("a100_40gb").is_reported_as(name, 81559)


def test_memory_is_the_drivers_where_it_is_known():
    """24564 MiB are 25.8 GB, not 24; and a profile that does not say it is written as it always was."""
    card = profile("titan_rtx").model_copy(update={"memory_mib": None})
    assert card.memory_bytes == 24e9
    assert "memory_mib" not in card.model_dump()
    probed = card.model_copy(update={"memory_mib": 24564})
    assert probed.memory_bytes == probed.of_cards(2).memory_bytes == 24564 * 2**20
    assert profile("cpu").memory_bytes is None


def test_a_split_keeps_the_global_batch():
    """Ranks x micro x accumulation is the global batch, or there is no split."""
    with pytest.raises(ValidationError, match="not 64"):
        Split(global_batch=64, micro_batch=8, accumulation=4)


def test_agent_and_client_mean_the_same_words():
    """The agent's terminal states are the client's."""
    assert set(rundir.TERMINAL) == {state.value for state in TERMINAL}


@pytest.mark.parametrize(
    ("hours", "text"), [(8.5, "8.5 h"), (12, "12 h"), (0.1, "6 min"), (0.006, "21.6 s"), (0.05, "3 min")]
)
def test_hours_are_told_in_the_unit_that_suits_them(hours, text):
    assert hours_text(hours) == text
