"""Take a fine-tune to any GPU at hand."""

__all__ = ["__version__"]

__version__ = "0.1.0"
