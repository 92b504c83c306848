"""What the source of a training script shows: which script a command starts, and what it does about ranks and the plan.

`script`, `rank_use` and `worker_use` each answer one question from source text.
Nothing is executed.
"""
