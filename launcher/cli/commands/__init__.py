"""The commands, one file each, in folders by task. A command's module is imported when the command is typed."""
