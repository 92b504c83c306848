"""lightgbm's training function, as its documentation calls it."""

import lightgbm
import numpy as np

rows, others = np.loadtxt("train.tsv"), np.loadtxt("test.tsv")
train = lightgbm.Dataset(rows[:, 1:], label=rows[:, 0])
test = lightgbm.Dataset(others[:, 1:], label=others[:, 0], reference=train)
lightgbm.train(
    {"objective": "binary", "metric": ["binary_logloss", "auc"], "num_leaves": 4, "verbose": 0},
    train,
    num_boost_round=12,
    valid_sets=[train, test],
    valid_names=["training", "valid_1"],
    callbacks=[lightgbm.log_evaluation(1)],
)
