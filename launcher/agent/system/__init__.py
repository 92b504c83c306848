"""What the operating system is asked for: processes and signals, programs with a deadline, memory kills."""
