"""The precision that a training really used, as the worker recorded it."""

from __future__ import annotations

from launcher.values.base import Record
from launcher.values.precision import Precision


class PrecisionSeen(Record):
    """The observations at one step: dtypes have torch's names, such as `bfloat16`, and counts are of tensors.

    `steps` is the number of optimizer steps begun before the observation; 0 if a training failed before its
    first step. `computed` counts the matrix products by the dtype of their result; it is empty if none were
    visible, as in a compiled model. `eps` is the smallest of any Adam optimizer; `stochastic_rounding` is
    torchao's rounding of bf16 weights. A value that was not observed is `None` or empty.
    """

    device: str | None = None
    autocast: list[str] = []
    scaler: bool = False
    trainable: dict[str, int] = {}
    frozen: dict[str, int] = {}
    gradients: dict[str, int] = {}
    computed: dict[str, int] = {}
    compiled: bool = False
    tf32: bool | None = None
    eps: float | None = None
    stochastic_rounding: bool = False
    steps: int | None = None

    @property
    def is_float32(self) -> bool:
        """Whether everything was computed in float32, as far as was seen: no precision is safer."""
        return not self.autocast and {*self.trainable, *self.frozen} == {"float32"}

    @classmethod
    def of_plan(
        cls, precision: Precision, dtypes: object, *, has_frozen: bool, is_rehearsed: bool
    ) -> PrecisionSeen:
        """Return the precision that a script takes from the plan.

        `dtypes` has the worker's counts, if any. A rehearsal is on a CPU.
        """
        frozen: dict[str, int] = {precision.base_dtype: 1} if has_frozen else {}
        if precision.quantization is not None:
            frozen[precision.quantization] = 1
        counted = cls.lenient(dtypes if isinstance(dtypes, dict) else {})
        return cls(
            device="cpu" if is_rehearsed else precision.device,
            autocast=[precision.autocast_dtype] if precision.autocast_dtype else [],
            scaler=precision.scaler,
            trainable=counted.trainable or {precision.trainable_dtype: 1},
            frozen=counted.frozen or frozen,
            eps=precision.adam_eps,
            tf32=precision.tf32,
            stochastic_rounding=precision.rounds_stochastically,
        )
