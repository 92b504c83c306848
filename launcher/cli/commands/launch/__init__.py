"""Commands that start or continue a run, or come before one: launch, init, check, rerun, resume, recover, verify."""
