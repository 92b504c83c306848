"""The verbs, one file each, in folders by task. A verb's module is loaded when it is typed."""
