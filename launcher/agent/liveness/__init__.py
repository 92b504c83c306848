"""Whether a run is alive, coming back, gone or silent, and how we know; whose a process is."""
