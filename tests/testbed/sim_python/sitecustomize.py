"""Lets every Python that is started with this folder on its path wait by the clock in the file SIM_CLOCK, see sim_clock.py."""

import os

if os.environ.get("SIM_CLOCK"):
    from testbed.sim_clock import wait_by_it

    wait_by_it()
