"""Find and parse the sources of a training, and answer questions about them."""
