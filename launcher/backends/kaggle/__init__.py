"""A Kaggle account."""
