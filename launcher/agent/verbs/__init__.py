"""The verbs that `serve` answers, in modules that are loaded when a verb is first asked for."""
