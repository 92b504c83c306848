"""The far end of a client's connection: receive requests and answer them."""
