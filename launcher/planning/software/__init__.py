"""The software of a plan: torch's build for a card, the Python environment, the image and its recipe.

`environment_plan`, `image_plan` and `wheel_choice` are the front doors.
Everything is pure: the tables come in as values.
"""
