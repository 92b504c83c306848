"""Sessions at Kaggle: the liveness of a run, by the service's last answer to the client."""
