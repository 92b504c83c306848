"""What each verb prints with --json, as types: the public part of its results. docs/json-schema.json is made from them.

A result that is `@public` is printed as it is. Any other part is read from a result by the names of its attributes.

Every object, and every line of a stream, begins with its version and its kind. A kind has the same keys whatever was
found: what is unknown is null. Sizes are in bytes, times in seconds since 1970, durations in seconds.
"""
