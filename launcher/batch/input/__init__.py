"""The user's file or grid: read into drafts of items, checked, and previewed. Nothing is queued here."""
