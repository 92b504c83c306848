"""A kind of host for the contract: this machine, with a spooler that starts each run's agent."""
