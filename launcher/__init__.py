"""Run a fine-tune on any GPU that you can reach."""

__all__ = ["__version__"]

__version__ = "0.1.0"
