"""Output: streams, colours, columns, questions and live regions of the terminal.

`say` prints lines of text, `answer` prints a line of JSON for scripts.
Text from a host is untrusted: this package removes its control characters.
"""
