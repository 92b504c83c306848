"""Holds memory on the card until a file is there, or on the CPU where torch sees no card: `holds.py BYTES FILE`.

It prints a line once it holds it.
"""

import os
import sys
import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
kept = torch.ones(int(sys.argv[1]), dtype=torch.uint8, device=device)
print(f"holds {kept.numel()} bytes", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
