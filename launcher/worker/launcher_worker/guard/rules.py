"""The rules for bad steps, and the number of bad steps in a row that ends the attempt."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional


class Tripped(RuntimeError):  # noqa: N818  # named after the event, as in the README
    """Raised when the guard ends an attempt; its text has the class, the reason and the figures."""


Tripped.__module__ = "launcher_worker"  # a traceback shows this public module

DIVERGED, NOT_LEARNING = "nan-divergence", "not-learning"
# A scaler starts with a scale that is far too high, and halves it at every skip. This many skips are normal.
SETTLING_SKIPS = 10
# Once the scaler has settled, fewer than half of this many steps may be skipped.
SKIP_WINDOW = 20
# The limit of steps with a high loss after a sudden jump of the loss, if no weight has leapt.
STEPS_AFTER_A_JUMP = 4
# The limit of steps in a row without any gradient: this share of the planned steps. Without a plan: a number.
ZERO_SHARE = 0.1
ZERO_STEPS = 20
# A gradient below this share of the largest so far consists of float32's rounding errors: eight units in the last place.
ROUNDED = 2**-20


class Rule(NamedTuple):
    """The condition of a bad step, and the number of bad steps in a row that ends the attempt."""

    kind: str
    steps: int
    text: str


# If several rules end an attempt, the first one here is reported. Most limits are four steps or
# fewer. On CUDA the figures of a step are read one step later: the attempt then ends at the fifth bad step.
RULES = {
    "weights": Rule(DIVERGED, 1, "trainable weights became non-finite"),
    "loss": Rule(DIVERGED, 2, "the loss is not finite"),
    "gradients": Rule(DIVERGED, 4, "every gradient overflowed or was not finite"),
    "collapse": Rule(
        DIVERGED, 3, "the gradient scaler collapses: half of the steps overflow, or its scale is below 1"
    ),
    "explosion": Rule(DIVERGED, 3, "the loss is far above where it began"),
    "leap": Rule(
        DIVERGED, 3, "the weights move by more than their own size in a step, and the loss has doubled"
    ),
    "still": Rule(NOT_LEARNING, 4, "no trainable weight moves, although the learning rate is above zero"),
    "zero": Rule(
        NOT_LEARNING,
        4,
        "every gradient of a weight is exactly zero, or the loss where no gradient can be seen",
    ),
    # These two have time: a warm-up may begin at zero, and its first steps move weights by little.
    "rest": Rule(NOT_LEARNING, 20, "every learning rate is zero"),
    "start": Rule(
        NOT_LEARNING,
        20,
        "all steps together moved the weights by less than float32 rounds: is the rate too low?",
    ),
    "left": Rule(
        NOT_LEARNING, 4, "the gradients of earlier steps are never zeroed: is optimizer.zero_grad() missing?"
    ),
    "astray": Rule(
        NOT_LEARNING,
        4,
        "a learning rate is negative, so each step climbs; or a momentum is 1 or more, so it never decays",
    ),
    "idle": Rule(NOT_LEARNING, 1, "no optimizer has made a step: is optimizer.step() missing?"),
    # A moving base is not a divergence: another precision would not help. A checkpoint holds only the
    # trainables; the moved base, with which they were trained, is lost.
    "base": Rule(NOT_LEARNING, 3, "the frozen base moves, so the saved adapter does not match it"),
}
DEAD_AFTER_A_LEAP = Rule(
    DIVERGED, 4, "the weights moved by more than their own size in a step, and every gradient is zero since"
)
UNLABELLED = Rule(
    NOT_LEARNING,
    2,
    "no label counts: from the first step on, the loss is not finite and every gradient is exactly zero. "
    "Are all labels masked (-100)?",
)
# one bad step by these rules is enough if it is the last step
FINAL_STEP_RULES = ("weights", "loss", "gradients", "explosion")
WARNING_RULES = ("zero", "rest", "explosion")  # these rules warn first: the task may be the cause
# no checkpoint is sealed after a bad step by these rules
SPOILING_RULES = ("weights", "loss", "explosion", "leap")


class Figures(NamedTuple):
    """The observations of one optimizer step; None for a missing one."""

    loss: Optional[float] = None  # the mean over the step's forward passes
    moved: Optional[bool] = None
    finite: bool = True  # whether the trainable weights are finite after the step
    leapt: bool = False
    base_moved: bool = False
    gradient: str = ""  # fine, zero or bad
    size: Optional[float] = None  # of the largest gradient element that was read
    are_left: bool = False  # whether the gradients of the step before were never zeroed
    at_start: Optional[bool] = None  # whether the weights are still where they began
    skipped: bool = False
    scale: Optional[float] = None
    rate: Optional[float] = None  # the largest learning rate
    is_rated: bool = (
        False  # every learning rate is above zero, and not negligible as at the start or end of a schedule
    )
    is_astray: bool = False  # a learning rate is negative, or a momentum is 1 or more


class Trip(NamedTuple):
    """The reason to end an attempt: `since` is the first bad step, `step` the step after which the guard noticed it."""

    rule: str
    kind: str
    why: str
    step: int
    since: int
    figures: Mapping[str, object]
