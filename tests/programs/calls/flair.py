"""flair's sequence tagger and its trainer, as flair's tutorial calls them."""

from flair.datasets import ColumnCorpus
from flair.embeddings import OneHotEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

corpus = ColumnCorpus(".", {1: "text", 4: "pos"}, train_file="train.conllu", dev_file="dev.conllu", sample_missing_splits=False)  # fmt: skip
labels = corpus.make_label_dictionary(label_type="pos")
embeddings = OneHotEmbeddings.from_corpus(corpus, field="text", min_freq=1, embedding_length=16)
tagger = SequenceTagger(hidden_size=16, embeddings=embeddings, tag_dictionary=labels, tag_type="pos")
ModelTrainer(tagger, corpus).train("out", learning_rate=0.1, mini_batch_size=4, max_epochs=3)
