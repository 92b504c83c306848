"""Whether a run is alive, coming back, gone or silent, and which run owns a process."""
