"""NEFTune: noise on the embeddings, by a hook that Trainer adds and removes."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama
from trainings.shared import assert_falls


def train() -> None:
    assert_falls(fit_with_trainer(worker.prepare(llama()), neftune_noise_alpha=5.0))
