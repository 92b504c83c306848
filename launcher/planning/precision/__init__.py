"""Precision: the ladder of what a card may use, the memory that it takes, and the split of the batch.

`ladder.ladder` is the front door.
Everything is pure: values in, values out.
"""
