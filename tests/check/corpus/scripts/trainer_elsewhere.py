"""Tune a captioner with the Trainer of a package that is not here."""

import sys

import torch
from captions.training import CaptionTrainer
from transformers import AutoModelForImageTextToText, TrainingArguments

from photos import rows

model = AutoModelForImageTextToText.from_pretrained("Salesforce/blip-image-captioning-base")
if torch.__version__ >= "2" and sys.platform != "win32":
    model = torch.compile(model)
arguments = TrainingArguments("captions", fp16=True, num_train_epochs=3)
CaptionTrainer(model=model, args=arguments, train_dataset=rows("train")).train()
