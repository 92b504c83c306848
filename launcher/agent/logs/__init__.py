"""Read logs: lines, metrics, steps and losses, from any library's output."""
