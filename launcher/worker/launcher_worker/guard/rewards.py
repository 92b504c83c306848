"""Rewards in a script's log: if all rewards of a step are equal, its gradients are zero without any fault.

reward_std, rewards/NAME/std     TRL's GRPO and RLOO: zero if the rewards of each group are equal
frac_reward_zero_std             TRL: the share of groups whose rewards are equal
rollout/ep_rew_mean              Stable-Baselines3: only the mean; equal if it has not changed
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

SPREADS = ("reward_std", "advantage_std")
SHARES = ("frac_reward_zero_std",)
MEANS = ("ep_rew_mean",)


class LoggedRewards:
    """The rewards that a script has logged so far."""

    def __init__(self) -> None:
        self._last_mean: Optional[float] = None

    def are_equal(self, metrics: Mapping[str, Any]) -> Optional[bool]:
        """Return whether all rewards of a log line are equal; None if the line has none."""
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
