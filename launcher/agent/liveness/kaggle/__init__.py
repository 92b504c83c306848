"""Sessions at Kaggle: what becomes of a run, as the client last heard."""
