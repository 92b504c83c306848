"""One attempt of a run: its command, streams, event writer and outcome."""
