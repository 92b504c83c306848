BASE = "microsoft/biogpt"
DATA = "data/notes"
OUT = "biogpt-notes"
USE_FP16 = True
BATCH = 4
EPOCHS = 2
