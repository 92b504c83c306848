"""Lets every Python that is started with this folder on its path wait by the clock in the file SIM_CLOCK, see sim_clock.py.

With SIM_COMPUTER it is on that computer, whose clocks move with it, and the product's own code reads them.
"""

import os

if os.environ.get("SIM_COMPUTER"):
    from pathlib import Path

    from testbed.sim_clock import Computer, SimClock

    Computer(Path(os.environ["SIM_COMPUTER"])).become(SimClock(Path(os.environ["SIM_CLOCK"])))
elif os.environ.get("SIM_CLOCK"):
    from testbed.sim_clock import wait_by_it

    wait_by_it()
