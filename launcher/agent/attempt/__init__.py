"""One attempt of a run: its command, streams, writer of events, and how it ended."""
