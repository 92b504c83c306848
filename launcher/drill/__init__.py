"""`launch drill`: break a small job on a host on purpose, and check that it recovers.

`drilling.drill` is the front door. `drill_faults` causes each fault; `drill_judging` judges the run from
evidence collected outside it. A drill uses launch and follow as any command does.
"""
