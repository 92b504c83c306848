"""The GPUs of this host: what the driver reports, who holds them, leases and the queue for them."""
