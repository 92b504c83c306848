"""The profiles of the installation and of the working directory, for tests."""

from launcher.config.lookup import Lookup


def profile(name):
    """The profile of a name or a family."""
    return Lookup().profile(name)


def profiles():
    """All profiles by name."""
    return Lookup().profiles
