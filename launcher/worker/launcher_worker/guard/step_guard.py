"""The guard of this process: follows optimizer steps of watched models, and acts on the judge's verdict.

The end of a step is called a tick. Under a Trainer it is `on_step_end`. Otherwise it is a GradScaler's
`update`, because a skipped step calls no optimizer; without a scaler it is the end of an optimizer's `step`.
"""

from __future__ import annotations

import math
import os
from typing import Any, Dict, Mapping, Optional, Sequence, Set

from ..channel import beat, rank, send
from ..precision.planned_optimizer import check_rounding
from ..values import knobs
from .evidence import PROVEN_STEPS, proof
from .idle import IdleLog
from .judge import Judge
from .optimizers import FollowedOptimizer, LearningRates, check_eps
from .readings import OpenStep, Reading, start_reading
from .rewards import LoggedRewards
from .rules import RULES, Trip, Tripped
from .torch_hooks import CAST_REFUSED, hook_forward, install
from .unzeroed_gradients import UnzeroedGradients
from .watched_models import WatchedModels


class StepGuard:
    """Watches models, collects the observations of their steps, and ends the attempt on the judge's verdict.

    On CUDA the figures of a step are read one tick later, so no code waits for the device.
    """

    def __init__(self) -> None:
        # True inside GradScaler.step, where the end of an optimizer's step is not a tick
        self.is_scaling = False
        self._models = WatchedModels()
        self._optimizer = FollowedOptimizer()
        self._rates = LearningRates()
        self._unzeroed = UnzeroedGradients()
        self._open_step = OpenStep()
        self._reading: Optional[Reading] = None  # the last step's figures, if they are still in transfer
        self._judge = Judge()
        self._idle = IdleLog()
        self._rewards = LoggedRewards()
        self._expects_rewards = False
        self._warned: Set[str] = set()  # rules that have only warned
        self._step = 0
        self._is_in_trainer = False
        self._sees_loss = False
        self._bad_norm_at: Optional[int] = None  # the last step whose logged norm was not finite
        self._is_proven = False
        self._tripped: Optional[Tripped] = None
        self._trial: Any = None  # the TrialWatch, if this is a trial of `launch verify`

    # -- reports of the script and of Trainer

    def watch(self, model: Any, moving: Sequence[str] = ()) -> None:
        """Follow a model from now on; `moving` lists name prefixes of frozen parameters that move on purpose."""
        if model in self._models:
            return
        install(self)
        hook_forward(model)
        self._models.add(model, moving)
        self._judge.plan(knobs().peek.steps)
        self._rates = LearningRates()
        if knobs().trial is not None and self._trial is None:
            from ..trials.trial_watch import TrialWatch

            self._trial = TrialWatch(model, lambda: self._judge)

    def follow_trainer(self, model: Any, step: int, steps: Optional[int] = None) -> None:
        """Count the steps of a Trainer that continues after `step` up to `steps`."""
        if model is not None and not self._models:
            self.watch(model)
        self._is_in_trainer = True
        self.restart(step, steps)

    @property
    def is_watching(self) -> bool:
        """Whether the guard follows a model."""
        return bool(self._models)

    def note_trainer_loss(self, loss: Any) -> None:
        """Note the loss of a micro-batch in a Trainer's loop, if it is known."""
        if loss is not None:
            self._open_step.add_trainer_loss(loss)

    def expect_rewards(self) -> None:
        """Judge steps without gradients only once their rewards are logged: equal rewards give no gradient."""
        self._expects_rewards = self._judge.expects_rewards = True

    def leave_trainer(self) -> None:
        """Count the steps of optimizers again."""
        self._read_waiting()
        self._is_in_trainer = self._expects_rewards = False

    def restart(self, step: int, steps: Optional[int] = None) -> None:
        """Restart the judgement after `step`: each training has its own first loss and its own settling scaler.

        `steps` is the training's last step; by default the plan's.
        """
        self._judge, self._reading = Judge(knobs().peek.steps if steps is None else steps), None
        self._judge.expects_rewards = self._expects_rewards
        self._models.forget()
        self._rates = LearningRates()
        self._open_step = OpenStep()
        self._step = step

    def locate(self, step: int) -> None:
        """Note the number of completed steps, in the script's count."""
        if not self._is_in_trainer:
            self._step = step

    def hear(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Use a line of the script's log: the step, Trainer's gradient norm, and the loss if the guard cannot see it."""
        norm, loss = _number(metrics.get("grad_norm")), _number(metrics.get("loss"))
        if norm is not None and not math.isfinite(norm):
            self._bad_norm_at = step
        are_equal = self._rewards.are_equal(metrics)
        if are_equal is not None:
            self._judge.hear_rewards(step, are_equal=are_equal)
        if loss is None:
            return
        if not self._is_in_trainer:  # if a forward pass has been seen, the logged step has not ticked yet
            self._step = step - 1 if self._open_step.forward_passes else step
            if self._idle.is_long(step, self._open_step.forward_passes, knobs().peek.split.accumulation):
                self._warn(Judge().judge_no_steps(step))
        if self._models and not self._sees_loss:
            self._act(self._judge.judge_logged_loss(step, loss))

    # -- reports of torch: see torch_hooks

    def see_forward(self, module: Any, output: Any) -> None:
        """Note a forward pass of a training, and its loss. Before the first step, samples are chosen."""
        import torch

        if module not in self._models or not module.training or not torch.is_grad_enabled():
            return
        self._open_step.forward_passes += 1
        # The weights of a divided model (FSDP2) are whole during the pass, and in shares at the step.
        if not self._models.has_samples and not hasattr(module, "unshard"):
            self._choose_samples()
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            self._open_step.add_loss(loss)
            self._sees_loss = True

    def before_step(self, optimizer: Any, has_closure: bool = False) -> None:
        """Read gradients and learning rates, which a script may change right after the step.

        With a closure the gradients are computed inside the step. Raises RuntimeError if a trainable's dtype
        has changed, because the optimizer would fail with a less clear message. Raises it also for an eps
        that is too small for float16.
        """
        if not self._models:
            return
        if not self._models.has_samples:
            self._choose_samples()
        if not self._is_counted(optimizer):
            return
        if self._models.has_new_dtypes:
            raise RuntimeError(CAST_REFUSED)
        check_eps(optimizer)
        check_rounding(optimizer)
        if self._trial is not None:
            self._trial.before_step(optimizer)
        self._rates.note(optimizer)
        if has_closure:
            return
        if self._judge.is_suspect("still") and self._models.is_sample_current:
            self._models.sample_largest_gradients(optimizer)
        elif self._judge.is_suspect("still"):  # the sampled parameters were replaced, so they never move
            self._choose_samples()
            self._judge.reset("still")
        self._open_step.gradients = self._models.read_gradients(
            optimizer, check_all=self._judge.is_suspect("zero")
        )
        self._open_step.are_left = self._unzeroed.take()
        self._unzeroed.follow(optimizer)

    def after_step(self, optimizer: Any) -> None:
        """Tick, unless a Trainer or a scaler ticks."""
        if self._trial is not None:
            self._trial.after_step(optimizer)
        is_counted = (
            not self.is_scaling and not self._is_in_trainer and self._optimizer.is_followed(optimizer)
        )
        if self._models and is_counted:
            self.tick()

    def note_scale(self, scale: Any, before: Any) -> None:
        """Note the scale of the gradients now and before: it falls if the step was skipped."""
        self._open_step.scaling = (scale < before, scale)

    def after_update(self, scale: Any, before: Any) -> None:
        """Note a scaler's update. Tick, unless a Trainer ticks."""
        self.note_scale(scale, before)
        if not self._is_in_trainer:
            self.tick()

    # -- a tick

    def tick(self, step: Optional[int] = None) -> None:
        """Judge the optimizer step that has just ended; `step` is the script's count. Raises Tripped."""
        if not self._models:
            return
        self._step = self._step + 1 if step is None else step
        beat(self._step)
        rates = self._rates.at_step_end()
        if self._trial is not None:  # it holds its first steps at a rate of zero
            rates = rates._replace(rate=rates.rate or None)
        reading = start_reading(self._step, self._measure(), rates)
        self._open_step, self._idle = OpenStep(), IdleLog()
        if reading.arrival is None:
            self._judge_reading(reading)
        else:
            waiting, self._reading = self._reading, reading
            self._judge_reading(waiting)
        if self._trial is not None and self._trial.end_step(self._step):
            self._read_waiting()
            self._trial.end()

    def complaint(self, step: int) -> Optional[str]:
        """Return the reason why a checkpoint written now must not count, or None. It reads every trainable."""
        self.locate(step)
        if not self._models:
            return None
        self._read_waiting()
        if self._tripped is not None:
            return str(self._tripped)
        if self._judge.spoiled_by is not None and knobs().guard == "end":
            return self._judge.spoiled_by
        return None if self._models.is_finite else RULES["weights"].text

    def finish(self) -> None:
        """Judge the end of the training, and send the proof if still due. Raises Tripped if it ends badly."""
        self._read_waiting()
        if self._tripped is not None:
            raise self._tripped
        judge = self._judge
        is_idle = not judge.steps and self._open_step.forward_passes > 1 and not self._models.have_moved
        self._act(judge.judge_no_steps(self._step) if is_idle else judge.judge_end(self._step))
        if judge.steps:
            self._prove(self._step)
            if rank() == 0:
                values = {"guard": {"steps": judge.steps, "skipped": judge.skips}}
                send("evidence", step=self._step, values=values)

    def _choose_samples(self) -> None:
        self._models.choose_samples()
        self._optimizer.forget_trainables()

    def _is_counted(self, optimizer: Any) -> bool:
        """Return whether this optimizer's steps count."""
        if self._is_in_trainer:
            return True
        if not self._optimizer.is_known(optimizer):
            if not self._models.is_sample_current:
                self._choose_samples()
            self._optimizer.learn(optimizer, self._models.trainable)
        if self._optimizer.note_step(optimizer):
            self._judge.reset("still")
        return self._optimizer.is_followed(optimizer)

    def _measure(self) -> Dict[str, Any]:
        """Return this step's figures as tensors on their device."""
        import torch

        is_fresh = not self._models.is_sample_trainable
        if is_fresh:
            self._choose_samples()
        # A step of another optimizer, such as that of a GAN's critic, need not move the watched weights.
        has_gradients = self._open_step.gradients is not None
        is_own_step = self._is_in_trainer or has_gradients or self._optimizer.holds_trainables
        with torch.no_grad():
            weights = self._models.measure(
                must_move=is_own_step and not is_fresh, is_at_start=not self._judge.has_left_start
            )
            return {**weights, **self._open_step.measure()}

    # -- the verdict

    def _read_waiting(self) -> None:
        waiting, self._reading = self._reading, None
        self._judge_reading(waiting)

    def _judge_reading(self, reading: Optional[Reading]) -> None:
        if reading is None:
            return
        # Trainer logs a norm after the guard has judged its step. So the norm counts with the next step,
        # unless the scaler skipped.
        is_norm_bad = self._bad_norm_at == reading.step - 1 and not self._judge.last.skipped
        self._act(self._judge.judge_step(reading.step, reading.figures(is_norm_bad=is_norm_bad)))
        if self._judge.good_steps >= PROVEN_STEPS:
            self._prove(reading.step)

    def _act(self, trip: Optional[Trip]) -> None:
        """Report a recovery, or end the attempt: raise Tripped."""
        recovered, self._judge.recovered = self._judge.recovered, None
        warning, self._judge.warning = self._judge.warning, None
        if warning is not None:
            self._warn(warning)
        if trip is None:
            if recovered is not None:
                send("evidence", step=self._step, values={"recovered": recovered})
            return
        if trip.rule in ("still", "base") and not self._models.is_sample_current:
            self._choose_samples()  # the sampled parameters were replaced, so they never move
            self._judge.reset(trip.rule)
            return
        if knobs().guard == "warn":
            self._judge.reset(trip.rule)
            if trip.rule not in self._warned:
                self._warned.add(trip.rule)
                self._warn(trip)
            return
        if self._tripped is None:
            self._tripped = Tripped(trip.why)
            values = {"class": trip.kind, "why": trip.why, "since": trip.since, **trip.figures}
            send("trip", step=trip.step, values=values)
            if "LAUNCH_ATTEMPT" not in os.environ:
                print(trip.why, flush=True)
        raise self._tripped

    def _warn(self, trip: Trip) -> None:
        """Report a warning: in the output, and as evidence."""
        print(f"guard: warning: {trip.why}", flush=True)
        send(
            "evidence",
            step=trip.step,
            values={"warning": {"class": trip.kind, "why": trip.why, "since": trip.since}},
        )

    def _prove(self, step: int) -> None:
        """Send, once, the proof that the precision works for this model."""
        if not self._is_proven and rank() == 0 and self._models:
            self._is_proven = True
            send("evidence", step=step, values={"proof": proof(self._models.first(), self._judge)})


def _number(value: Any) -> Optional[float]:
    """Return a logged metric as a number, or None if it is not one. Non-finite numbers are strings in a log."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
