"""The GPUs of this host: the driver's report, the processes that hold them, leases and the queue for them."""
