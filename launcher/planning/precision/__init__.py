"""Precision: the ladder of a card's possible precisions, their memory, and the split of the batch.

The entry point is `ladder.ladder`. Everything is pure: values in, values out.
"""
