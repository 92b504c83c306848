"""The software of a plan: torch's build for a card, the Python environment, the image and its recipe.

The entry points are `environment_plan`, `image_plan` and `wheel_choice`. Everything is pure: the tables are
arguments.
"""
