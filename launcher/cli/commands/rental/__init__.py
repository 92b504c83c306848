"""Verbs for rented machines: offers, extend, reconcile."""
