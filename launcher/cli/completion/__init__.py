"""Completion in a shell: which words may follow.

`completing` is the front door; it loads neither pydantic nor a backend.
"""
