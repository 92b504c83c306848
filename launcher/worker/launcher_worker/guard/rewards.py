"""Rewards in what a script logs: where all of a step's rewards are equal, its gradients are zero, and nothing is wrong.

reward_std, rewards/NAME/std     TRL's GRPO and RLOO: zero where the rewards of each group are equal
frac_reward_zero_std             TRL: the share of groups whose rewards are equal
rollout/ep_rew_mean              Stable-Baselines3: the mean alone; equal if it is what it was
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

SPREADS = ("reward_std", "advantage_std")
SHARES = ("frac_reward_zero_std",)
MEANS = ("ep_rew_mean",)


class LoggedRewards:
    """What a script has logged about rewards so far."""

    def __init__(self) -> None:
        self._last_mean: Optional[float] = None

    def are_equal(self, metrics: Mapping[str, Any]) -> Optional[bool]:
        """Return whether the rewards of a log line are all equal; None if it has none."""
        equal = None
        for name, value in metrics.items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            last = name.split("/")[-1]
            if last in SHARES:
                return value >= 1
            if last in SPREADS or (name.startswith("rewards/") and last == "std"):
                equal = equal is not False and abs(value) < 1e-6
            elif last in MEANS:
                equal = value == self._last_mean
                self._last_mean = value
        return equal
