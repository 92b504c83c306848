"""Follow values through a training's sources: assignments, keyword dicts, options, dataclasses, helpers, modules.

An expression has a list of possible values. `UNKNOWN` among them means that the value is unknown.
"""
