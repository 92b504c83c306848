"""A language model whose head is its embedding: one parameter under two names."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama
from trainings.shared import assert_falls


def train() -> None:
    model = worker.prepare(llama(tie_word_embeddings=True))
    assert_falls(fit_with_trainer(model))
