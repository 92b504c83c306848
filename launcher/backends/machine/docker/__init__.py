"""Containers of a host's engine: the engine client, its images, and leftovers of builds.

Only `engine.py` imports docker-py, which takes 0.15 s.
"""
