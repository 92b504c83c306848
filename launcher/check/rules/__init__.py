"""The rules of `launch check`, a file each. `table.py` lists them."""
