"""catboost's classifier, as its documentation calls it."""

import numpy as np
from catboost import CatBoostClassifier

rows, others = np.loadtxt("train.tsv"), np.loadtxt("test.tsv")
model = CatBoostClassifier(iterations=12, train_dir="out")
model.fit(rows[:, 1:], rows[:, 0], eval_set=(others[:, 1:], others[:, 0]))
