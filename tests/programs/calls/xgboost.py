"""xgboost's training function, as its documentation calls it."""

import numpy as np
import xgboost

train, test = (
    xgboost.DMatrix(rows[:, 1:], label=rows[:, 0])
    for rows in (np.loadtxt("train.tsv"), np.loadtxt("test.tsv"))
)
settings = {"objective": "binary:logistic", "max_depth": 2, "eval_metric": ["logloss", "error"]}
xgboost.train(settings, train, num_boost_round=12, evals=[(train, "train"), (test, "eval")])
