"""Commands for hosts and cards: hosts, probe, drill, trust, profile, image."""
