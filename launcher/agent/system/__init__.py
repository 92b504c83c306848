"""Operating-system calls: processes and signals, programs with a deadline, memory kills."""
