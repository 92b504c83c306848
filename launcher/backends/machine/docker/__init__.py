"""Containers of a host's own engine: the engine, its images, what builds leave. Only `engine.py` imports docker-py, which takes 0.15 s."""
