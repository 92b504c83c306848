"""The points of a run's events, for tests of curves."""

from launcher.metrics.curves import in_order, points


def curve(events):
    """All points of some events, in their order."""
    return in_order(point for event in events for point in points(event))
