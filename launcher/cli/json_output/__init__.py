"""The types of `--json` output, the public part of each command's results. docs/json-schema.json is generated from them.

A result that is `@public` is printed unchanged. Any other part is filled from the result's attributes of the same names.

Every object, and every line of a stream, begins with its version and its kind. A kind always has the same keys: an
unknown value is null. Sizes are in bytes, times in seconds since 1970, durations in seconds.
"""
