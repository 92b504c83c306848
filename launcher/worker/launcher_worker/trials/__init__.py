"""The trials of `launch verify`: what a card computes, and how a job trains on it for a few steps.

    card            what the card computes, and how fast: a program of its own
    trial_watch     follows the steps of a job in a trial, reports what they show, and ends the job
    gradients       how close a step's gradient is to that of fp32
    meters          time, tokens and memory of the steps

The agent starts each trial as an attempt, whose `attempt.json` holds `trial`:

    {"kind": "rung", "steps": 12, "held": 6, "folder": "/…/trials", "is_reference": false}

For the first `held` steps the weights are held where they are, so that all trials compute gradients of the same weights.
Each trial ends with one event, the evidence `trial`.
"""
