"""One module a provider."""
