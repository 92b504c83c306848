"""Commands that work beside a run: exec, shell, forward."""
