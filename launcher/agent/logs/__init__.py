"""What a log says: lines, metrics, steps and losses, whatever library printed them."""
