"""Lets every Python that is started with this folder on its path wait by the clock in the file SIM_CLOCK, see sim_clock.py."""

import os
from pathlib import Path

if os.environ.get("SIM_CLOCK"):
    from testbed.sim_clock import SimClock

    from launcher.values import clock

    class _Clock(SimClock):
        def __init__(self) -> None:
            super().__init__(Path(os.environ["SIM_CLOCK"]))

    clock.SystemClock = _Clock
