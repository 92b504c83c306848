"""Commands for rented machines: offers, extend, reconcile."""
