"""Read a training script's source: which script a command starts, and how it uses ranks and the plan.

`script`, `rank_use` and `worker_use` each answer one question from source text. No code is executed.
"""
