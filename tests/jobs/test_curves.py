"""What `make curves` plans, and what it writes of curves that were measured, good and broken ones. Nothing is trained here."""

import math

import pytest
from bench import curves, curves_page
from bench.curves import Card, Way
from bench.curves_page import Curve, Measurement
from testbed.profiles import profile

from launcher.planning.precision.ladder import LadderInputs, ladder

STEPS = 5
PLAIN = {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.5, 5: 1.0}


def card(name, *words):
    """A card as `launch explain` describes it for a LoRA."""
    inputs = LadderInputs(profile(name), "lora")
    found = ladder(inputs)
    modes = dict.fromkeys(one.mode for one in found.excluded if one.on_request)
    on_request = tuple(ladder(inputs, mode).rungs[0] for mode in modes)
    return Card(name, words, found.rungs, on_request)


def curve(name, losses, state="succeeded", mode="fp32", *, counts=True):
    """A run that has ended."""
    return Curve(name, mode, f"{mode} weights", "micro-batch 8 x 4 = 32", state, counts, 12.5, losses)


def measurement(*found, job="sft"):
    """What a machine without a card has measured."""
    where = "rehearsed on a CPU with 2 cores, no card"
    return Measurement(job, "2026-11-25", where, True, "2.13.0", "5.23.0", STEPS, 32, 0, 400.0, found)


def cells(name, text):
    """The cells of a run's row in a page."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return line.strip("| ").split(" | ")


# what is run


def test_without_a_card_each_rung_of_each_rehearsed_card_is_run_once_and_fp32_first():
    """Of a CPU, a Turing and an Ampere card; fp32 also with smaller micro-batches, two ranks and four."""
    cpu = card("cpu")
    rehearsed = [card(name, "--rehearse", "--profile", name) for name in ("titan_rtx", "a100_40gb")]
    planned = list(curves.ways(cpu, rehearsed, micro_batch=32, cards=0))
    assert planned[0] == Way("cpu, fp32", "cpu", cpu.rungs[0], ())
    rungs = [way for way in planned if "rung" in way.name]
    assert [(way.card, way.precision) for way in rungs] == [
        (one.name, rung) for one in rehearsed for rung in one.rungs
    ]
    assert all("--rehearse" in way.words for way in rungs)
    splits = [way.words[-1] for way in planned if "micro-batch" in way.name]
    assert splits == ["batch.micro=8", "batch.micro=4", "batch.micro=2"]
    ranks = [way for way in planned if "ranks" in way.name]
    of_titan = ("--rehearse", "--profile", "titan_rtx", "--gpus")
    assert [way.words[:5] for way in ranks] == [(*of_titan, "2"), (*of_titan, "4")]
    assert {way.precision for way in ranks} == {rehearsed[0].rungs[2]}
    assert [way.name for way in planned if way.is_on_request] == []
    assert len({way.name for way in planned}) == len(planned)


def test_a_rung_is_reached_by_leaving_out_those_above_it():
    """fp32 without tf32 is the third of an A100's, and no request names it."""
    planned = list(curves.ways(card("a100_40gb"), [], micro_batch=16, cards=1))
    first = planned[0]
    assert (first.precision.mode, first.precision.tf32) == ("fp32", False)
    assert [rung.mode for rung in first.skipped] == ["bf16", "fp32"]
    assert [way.skipped for way in planned if "rung 1" in way.name] == [()]
    assert not any("--precision" in way.words for way in planned if not way.is_on_request)


@pytest.mark.parametrize(("cards", "world_sizes"), [(1, ["1"]), (2, ["1", "2"]), (4, ["1", "2", "4"])])
def test_on_a_card_nothing_is_rehearsed_and_ranks_need_as_many_cards(cards, world_sizes):
    """The card's own rungs, each once; its own precisions on request."""
    own = card("titan_rtx")
    planned = list(curves.ways(own, [], micro_batch=8, cards=cards))
    assert not any("--rehearse" in way.words for way in planned)
    ranks = [way.words[way.words.index("--gpus") + 1] for way in planned]
    assert sorted(set(ranks)) == world_sizes
    run = [way.precision for way in planned if not way.is_on_request]
    assert set(run) == set(own.rungs)
    assert "batch.micro=8" not in planned[1].words  # what a TITAN RTX takes anyway


# how a run ended


def test_a_run_counts_as_good_only_with_its_own_precision_and_all_its_losses():
    """The plan's first rung, what the hook saw, and a loss for each step."""
    fp16, _, fp32 = card("titan_rtx").rungs
    plan = {"ladder": [fp16.model_dump(), fp32.model_dump()]}
    ended = {"state": "succeeded", "reason": "completed", "evidence": {"exit": 0}}
    seen = {"verdict": "as-wanted", "sentence": "this run used the card's best precision"}
    assert curves.fault_of(fp16, plan, ended, seen) == ""
    assert curves.fault_of(fp32, plan, ended, seen).startswith("failed: the plan began with fp16 autocast")
    other = {"verdict": "lower-rung", "sentence": "this run used rung 2"}
    assert curves.fault_of(fp16, plan, ended, other) == "failed: this run used rung 2"
    broken = {"state": "failed", "reason": "attempts-exhausted", "evidence": {"class": "cuda-oom", "step": 8}}
    assert curves.fault_of(fp16, plan, broken, seen) == "failed: cuda-oom, step 8"
    assert curves.gap_in(PLAIN, STEPS) == ""
    assert curves.gap_in({1: 4.0, 3: 2.0}, STEPS) == "failed: no loss of step 2"


def test_a_rehearsal_does_not_claim_tf32():
    """A title that says tf32 says too that it was off."""
    tf32 = card("a100_40gb").rungs[1]
    row = {"name": "tf32", "wanted": "on"}
    assert "no tf32" in curves.note_on_tf32(tf32, {"rows": [{**row, "ran": "off"}]})
    assert curves.note_on_tf32(tf32, {"rows": [{**row, "ran": "on"}]}) == ""


# what is written


def test_a_distance_is_taken_at_the_steps_that_both_have():
    """In loss, without a sign; a loss that is not a number is at no distance."""
    plain = curve("cpu, fp32", PLAIN)
    other = curve("other", {2: 3.5, 4: 1.25, 3: math.nan, 6: 9.0})
    apart = curves_page.distances(other, plain)
    assert list(apart) == [2, 3, 4]
    assert (apart[2], apart[4]) == (0.5, 0.25)
    assert math.isnan(apart[3])


def test_a_page_has_a_row_for_each_run_also_for_those_that_failed():
    """One that broke off has its last loss, one that never began has none; both are named below the table."""
    found = measurement(
        curve("cpu, fp32", PLAIN),
        curve("near", {**PLAIN, 3: 2.25, 5: 1.0}),
        curve("broke", {1: 4.0, 2: 3.5}, "failed: nan-divergence, step 3", "fp16"),
        curve("never", {}, "not launched: no such card | 2"),
    )
    text = curves_page.page([found])
    split = "micro-batch 8 x 4 = 32"
    assert cells("cpu, fp32", text)[1:] == ["fp32 weights", split, "4.0000", "1.0000", "-", "-", "succeeded"]
    assert cells("near", text)[3:] == ["4.0000", "1.0000", "2.5e-01", "0.0e+00", "succeeded"]
    broken = ["4.0000", "3.5000", "5.0e-01", "5.0e-01", "failed: nan-divergence, step 3"]
    assert cells("broke", text)[3:] == broken
    assert cells("never", text)[3:] == ["-", "-", "-", "-", "not launched: no such card / 2"]
    assert "Did not train to the end: broke; never." in text
    assert "](same-curve.png)" in text
    assert "rehearsed on a CPU with 2 cores, no card" in text
    assert "tensor" in text
    assert found.has_failed


def test_what_is_never_chosen_automatically_may_fail():
    """Its row says so, and the command ends well."""
    native = curve("native", {1: 4.0}, "failed: nan-divergence, step 2", "fp16-native", counts=False)
    found = measurement(curve("cpu, fp32", PLAIN), native)
    assert not found.has_failed
    assert "Did not train to the end: native." in curves_page.page([found])


def test_numbers_are_kept_for_each_job_and_come_back(tmp_path):
    """Two jobs, and a loss that is not a number."""
    path = tmp_path / "CURVES.json"
    assert curves_page.read(path) == []
    one = measurement(curve("cpu, fp32", PLAIN), curve("broke", {1: math.inf}, "failed: x"))
    other = measurement(curve("cpu, fp32", PLAIN), job="distill")
    curves_page.write([one, other], path)
    assert curves_page.read(path) == [one, other]
    assert "](same-curve-distill.png)" in curves_page.page(curves_page.read(path))


def test_the_page_is_that_of_the_numbers_beside_the_bench():
    """It is written by the command alone. A rehearsal has all world sizes."""
    measurements = curves_page.read(curves.NUMBERS)
    assert curves.PAGE.read_text() == curves_page.page(measurements)
    for one in measurements:
        assert curves.PAGE.with_name(curves_page.picture_name(one.job)).exists()
        sizes = [curve.split.partition(" ")[0] for curve in one.curves if "ranks" in curve.name]
        assert sizes == [str(count) for count in curves.WORLD_SIZES] or not one.is_rehearsed


def test_the_picture_shows_every_run_and_stays_small(tmp_path):
    """Losses above, distances below: 14 runs of 100 steps, one of which broke off."""
    plain = {step: 10.0 / step for step in range(1, 101)}
    moved = [{step: loss + 1e-3 * (shift + step % 7) for step, loss in plain.items()} for shift in range(12)]
    runs = [curve(f"run {number}", losses) for number, losses in enumerate(moved)]
    broke = curve("broke", {1: 10.0, 2: math.nan}, "failed: nan-divergence, step 2", "fp16-native")
    found = measurement(curve("cpu, fp32", plain), *runs, broke)
    above, below = curves_page.figure_of(found).axes
    assert len(above.lines) == len(found.curves)
    assert len(below.lines) == len(found.curves) - 1
    names = [text.get_text() for text in above.get_legend().get_texts()]
    assert names == [*(one.name for one in found.curves[:-1]), "broke (failed)"]
    looks = {(line.get_color(), line.get_linestyle(), line.get_linewidth()) for line in above.lines}
    assert len(looks) == len(found.curves)
    curves_page.draw(found, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "curves.png").stat().st_size < 200_000
