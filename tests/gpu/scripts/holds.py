"""Holds memory on the card until a file is there, or on the CPU where torch sees no card: `holds.py BYTES FILE`.

It prints what was free before, in bytes, once it holds its own (None on a CPU).
"""

import os
import sys
import time

import torch

is_on_card = torch.cuda.is_available()
free = torch.cuda.mem_get_info()[0] if is_on_card else None
kept = torch.ones(int(sys.argv[1]), dtype=torch.uint8, device="cuda" if is_on_card else "cpu")
print(f"holds {kept.numel()} bytes of {free}", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
