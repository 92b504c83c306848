"""What a run shows about a precision, the next plan on that host heeds: a real run on cards that only seem to be there."""

import json
import re

import pytest

HALVES_FAIL = """
import launcher_worker as worker
if worker.knobs().precision.mode == "fp16":
    raise ValueError("Attempting to unscale FP16 gradients.")
worker.done(1)
"""
WORDS = ("--profile", "t4", "--", "python", "train.py")


def modes(client, *options):
    """The modes of the next plan's ladder."""
    plan = json.loads(client.planned("--json", *options, *WORDS))["plan"]
    return [rung["mode"] for rung in plan["ladder"]]


@pytest.mark.long
@pytest.mark.slow(reason="several clients and runs")
def test_a_precision_that_failed_here_is_not_the_first_rung_of_the_next_plan(client, cards):
    """A rehearsal shows nothing; a request is heeded; the reason is said before a launch."""
    cards.put("t4")
    client.script(HALVES_FAIL)
    client.ok("--rehearse", *WORDS)
    assert modes(client) == ["fp16", "fp32"]
    first = client.seen(*WORDS)
    assert "failed here before" not in first
    run = re.search(r"run (\S+), attempt 1", first)
    reason = f"failed here before: fp16-unscale, run {run[1]}"
    assert modes(client) == ["fp32", "fp16"]
    assert modes(client, "--precision", "fp16") == ["fp16", "fp32"]
    second = client.seen(*WORDS)
    assert f"fp16 {reason}" in second
    assert "· fp32" in second
