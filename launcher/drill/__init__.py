"""`launch drill`: break a small job on a host on purpose, and check that it recovers.

`drilling.drill` is the front door; `drill_faults` causes each fault, and `drill_judging` judges by a witness outside the run.
It uses launch and follow as any command does.
"""
