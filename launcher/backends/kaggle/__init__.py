"""An account of Kaggle's."""
