"""Text for the terminal: plans, comparisons, metrics, rentals.

One module for each kind of value. It lays out the text, and `cli/output` prints it.
"""
