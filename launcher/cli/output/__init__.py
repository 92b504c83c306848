"""Output: streams, colours, columns, questions and live regions of the terminal.

`say` prints a line for people, `answer` one for scripts.
Text from a host is made safe here.
"""
