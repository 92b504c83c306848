"""Images, environments, requirements and tables of torch builds, as values."""
