"""Verbs beside a run: exec, shell, forward."""
