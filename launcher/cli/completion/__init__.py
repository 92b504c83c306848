"""Completion in a shell: which words may follow.

`completing` is the front door; each word loads only what its own answers need.
"""
