"""Commands that start or continue a run: launch, init, rerun, resume, recover, verify."""
