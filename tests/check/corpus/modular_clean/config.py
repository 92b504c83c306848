from dataclasses import dataclass


@dataclass
class Config:
    name: str = "google/pegasus-x-base"
    dataset: str = "abisee/cnn_dailymail"
    max_len: int = 1024
    lr: float = 3e-5
    batch: int = 2
    fp16: bool = True
    weights: str = "float32"
    out: str = "pegasus-cnn"
