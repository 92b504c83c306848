"""Imported before the libraries: leaves out what they say of their own parts as they are loaded, and of one another."""

import logging

for name in (
    "torchao",  # parts for other cards
    "torch.utils._pytree",  # an old call in torchao
    "bitsandbytes.backends.cpu",  # a faster kernel that is not installed
    "transformers.trainer_callback",  # that it does not load the best checkpoint: the job does
):
    logging.getLogger(name).setLevel(logging.ERROR)
