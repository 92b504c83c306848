"""Verbs that start a run: launch, init, rerun, resume, recover, verify."""
