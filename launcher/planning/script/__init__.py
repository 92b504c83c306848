"""Read the words of a command: the script that it starts, and the texts that name a model or data."""
