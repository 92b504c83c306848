"""One session of a run in a service that shows only printed output, and keeps one folder at the end."""
