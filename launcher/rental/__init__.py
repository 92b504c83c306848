"""A machine by the hour: providers and their accounts, the ledger of what is rented, its launch, its end, and reconciling."""
