"""Take a fine-tune to whichever GPU is at hand."""

__all__ = ["__version__"]

__version__ = "0.1.0"
