"""The trials of `launch verify`: measure a card's arithmetic, and train a job on it for a few steps.

    card            a separate program: checks and times the card's matrix products
    trial_watch     follows the steps of a job in a trial, reports its measurements, and ends the job
    gradients       the cosine between a step's gradient and that of fp32
    meters          time, tokens and memory of the steps

The agent starts each trial as an attempt, whose `attempt.json` holds `trial`:

    {"kind": "rung", "steps": 12, "held": 6, "folder": "/…/trials", "is_reference": false}

The first `held` steps leave the weights unchanged, so that all trials compute gradients of the same weights.
Each trial ends with one event, the evidence `trial`.
"""
