"""Values as text for people: plans, comparisons, metrics, rentals.

One module for each value; each returns lines, and `cli/output` prints them.
"""
