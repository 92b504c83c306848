"""The verbs that `serve` answers. Each module is loaded when one of its verbs is first requested."""
