"""Pure functions from values to values: nothing here reads a file, a clock or a host."""
