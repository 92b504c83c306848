"""Commands for hosts and cards: hosts, probe, doctor, drill, trust, profile, image."""
