"""What a training used beside the ladder of its plan: rows, and a verdict in one sentence."""

import pytest

from launcher.planning.precision.precision_comparison import compare, judge
from launcher.values.precision import Precision
from launcher.values.reported.used_precision import PrecisionSeen


def rung(mode, capability, base="float32", autocast=None, scaler=False, tf32=False):
    return Precision(
        mode=mode, device="cuda", capability=capability, base_dtype=base, autocast_dtype=autocast, scaler=scaler,
        tf32=tf32, why="a test",
    )  # fmt: skip


TURING = (
    rung("fp16", "7.5", "float16", "float16", scaler=True),
    rung("fp16", "7.5", "float32", "float16", scaler=True),
    rung("fp32", "7.5"),
)
NARROW = Precision(
    mode="bf16-weights", device="cuda", capability="8.0", base_dtype="bfloat16", trainable_dtype="bfloat16", why="a test"
)  # fmt: skip
AMPERE = (rung("bf16", "8.0", "bfloat16", "bfloat16", tf32=True), rung("fp32", "8.0", tf32=True))
HALF, BF16, FP32 = {"float16": 8}, {"bfloat16": 8}, {"float32": 8}


def seen(trained=FP32, frozen=HALF, autocast=(), computed=None, **more):
    return PrecisionSeen(
        device="cuda", trainable=trained, gradients=trained, frozen=frozen, autocast=[*autocast],
        computed=frozen if computed is None else computed, tf32=False, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ran", "ladder", "kind", "words"),
    [
        (seen(autocast=["float16"], scaler=True), TURING, "as-wanted", "this run used the card's best precision"),
        (seen(autocast=["float16"], scaler=True, frozen=FP32, computed=HALF), TURING, "lower-rung", "rung 2"),
        (seen(frozen=FP32), TURING, "lower-rung", "rung 3 of the ladder, fp32"),
        (seen(HALF, scaler=True), TURING, "unsound", "a scaler cannot unscale float16 gradients"),
        (seen(HALF, eps=1e-8), TURING, "unsound", "Adam's eps 1e-08 is below the smallest normal number of float16"),
        (seen(HALF, eps=1e-4), TURING, "unsound", "Adam with an eps of 0.0001 takes steps up to 55 times too large"),
        (seen(), TURING, "unsound", "fp16 loses the gradients of float32 trainables without a scaler"),
        (seen(autocast=["bfloat16"], frozen=BF16), TURING, "unsound", "7.5 < 8.0 emulates bf16 in software"),
        (seen(autocast=["float16"], frozen=BF16, scaler=True), TURING, "unsound", "mixes fp16 and bf16"),
        (seen(BF16, frozen={}, computed=BF16), AMPERE, "unsound", "bfloat16 trainables lose small updates"),
        (seen(BF16, frozen={}, computed=BF16), TURING, "unsound", "7.5 < 8.0 emulates bf16 in software"),
        (seen(autocast=["bfloat16"], frozen=BF16), AMPERE, "as-wanted", "best precision"),
        (seen(autocast=["bfloat16"], frozen=FP32, computed=BF16), AMPERE, "different", "frozen weights fp32 instead of bf16"),
        (seen(frozen=FP32), AMPERE, "different", "tf32 off instead of on"),
        (seen(BF16, frozen={}, computed=BF16, stochastic_rounding=True), (NARROW,), "as-wanted", "best precision"),
        (seen(BF16, frozen={}, computed=BF16), (NARROW,), "unsound", "bfloat16 trainables lose small updates"),
        (seen(BF16, frozen={}, computed=BF16, stochastic_rounding=True), AMPERE, "different", "trained weights bf16 instead of fp32"),
    ],
)  # fmt: skip
def test_a_training_is_judged_by_the_rules_of_its_card(ran, ladder, kind, words):
    """The rules are those by which a plan's own precision is built."""
    verdict = judge(ran, ladder, is_rehearsed=False)
    assert verdict.kind == kind
    assert words in verdict.sentence


def test_each_property_that_differs_is_named():
    """A field report: everything in fp16, and a scaler."""
    rows = compare(seen(HALF, scaler=True), TURING[0], is_rehearsed=False)
    assert [row.name for row in rows if row.differs] == ["autocast", "trained weights", "gradients"]
    assert next(row for row in rows if row.name == "autocast")[1:3] == ("none", "fp16")


def test_one_trained_tensor_of_another_dtype_counts_and_one_frozen_one_does_not():
    """A scaler fails at the first float16 gradient. Norms of a frozen base are often float32."""
    mixed = {"float32": 7, "float16": 1}
    rows = compare(
        seen(mixed, {"float16": 7, "float32": 1}, ["float16"], scaler=True), TURING[0], is_rehearsed=False
    )
    assert [row.name for row in rows if row.differs] == ["trained weights", "gradients"]
    assert [row.ran for row in rows][3:5] == ["7 fp32, 1 fp16", "7 fp16, 1 fp32"]


def test_what_was_not_seen_differs_from_nothing():
    """A compiled model shows no products, and a quantized base has no dtype of a precision."""
    ran = seen(frozen={"uint8": 8}, computed={}, autocast=["float16"], scaler=True)
    assert judge(ran, TURING, is_rehearsed=False).kind == "as-wanted"
    names = [row.name for row in compare(PrecisionSeen(), TURING[2], is_rehearsed=False) if row.differs]
    assert names == []


def test_a_base_in_4_bits_is_compared_by_what_is_quantized():
    """A plan for one wants one; one that was saved so is no matter. Adapters that a library has cast are named."""
    wanted = Precision.model_validate({**TURING[0].model_dump(), "quantization": "nf4"})
    lean, wide = {"nf4": 21, "float16": 9}, {"float16": 30}
    kinds = {}
    for plan_of, base in ((wanted, lean), (wanted, wide), (TURING[0], lean)):
        ran = seen(frozen=base, computed=HALF, autocast=["float16"], scaler=True)
        row = next(row for row in compare(ran, plan_of, is_rehearsed=False) if row.name == "frozen weights")
        kinds[row.wanted, row.ran] = row.differs
    assert kinds == {
        ("nf4", "21 nf4, 9 fp16"): False,
        ("nf4", "fp16"): True,
        ("fp16", "21 nf4, 9 fp16"): False,
    }
    cast = seen(BF16, lean, ["float16"], computed=HALF, scaler=True)
    assert judge(cast, [wanted], is_rehearsed=False).kind == "unsound"


def test_a_rehearsal_is_compared_without_its_device():
    """It runs on a CPU in the card's place."""
    ran = seen(autocast=["float16"], scaler=True).model_copy(update={"device": "cpu"})
    assert judge(ran, TURING, is_rehearsed=True).kind == "as-wanted"
    assert compare(ran, TURING[0], is_rehearsed=True)[0][1:] == ("cpu, for cuda", "cuda", False)
    assert compare(ran, TURING[0], is_rehearsed=False)[0].differs
