"""A stand-in for a person's own script: it prints what Hugging Face's Trainer prints."""

import time

for step in range(1, 6):
    print(
        {"step": step, "loss": round(2 / step, 4), "grad_norm": 0.9, "learning_rate": 1e-4, "epoch": step / 5}
    )
    time.sleep(0.05)
