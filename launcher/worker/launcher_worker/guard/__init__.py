"""The guard: ends a training that diverges or does not learn, a few steps after the first bad one.

Example: from step 40 on the loss is NaN. Step 40 is the first bad step and step 41 the second. The rule
`loss` ends an attempt at the second bad step in a row, so the guard raises `Tripped("nan-divergence: the loss
is not finite, 2 steps in a row, since step 40 (...)")`. No checkpoint of these steps is sealed. The agent
starts the next attempt from an earlier one, at another precision.

    torch_hooks      reports forward passes, optimizer steps, scaler updates and casts to the guard
    step_guard       follows the steps: collects the observations of each one, and acts on the verdict
    watched_models   the models, and samples of their weights, gradients and frozen base
    unzeroed_gradients  gradients that a script forgot to zero
    twins            frozen tensors that follow trained ones, such as an EMA teacher's
    samples          a few thousand elements of a model: their movement, and whether they are finite
    optimizers       the optimizer whose steps count, if there are several; learning rates; a check of eps
    readings         the figures of a step, and their copy from the device to the host
    losses, rewards  the course of the loss; rewards that a script logs, and whether they are equal
    idle             logged steps without an optimizer step
    rules, judge     the rules for a bad step, and the limit of bad steps in a row; plain Python, no torch
    evidence         the proof that a precision works for a model
"""

from __future__ import annotations

from .step_guard import StepGuard

process_guard = StepGuard()
