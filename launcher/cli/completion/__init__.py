"""Shell completion.

`completing` is the entry point. Each kind of word imports only the modules for its answers.
"""
