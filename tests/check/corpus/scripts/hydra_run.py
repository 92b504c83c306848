"""Hydra entry point for a wav2vec2 CTC fine-tune (conf/ holds the settings)."""
import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers import Trainer, TrainingArguments, Wav2Vec2ForCTC, Wav2Vec2Processor


@hydra.main(version_base=None, config_path="conf", config_name="ctc")
def main(cfg: DictConfig):
    processor = Wav2Vec2Processor.from_pretrained(cfg.model.name)
    model = Wav2Vec2ForCTC.from_pretrained(
        cfg.model.name,
        dtype=getattr(torch, cfg.model.dtype),
        ctc_loss_reduction="mean",
        pad_token_id=processor.tokenizer.pad_token_id,
    )
    if cfg.model.freeze_encoder:
        model.freeze_feature_encoder()
    train_set, dev_set, collator = instantiate(cfg.data, processor=processor)
    args = TrainingArguments(
        output_dir=cfg.out,
        bf16=cfg.precision == "bf16",
        fp16=cfg.precision == "fp16",
        tf32=cfg.get("tf32"),
        logging_nan_inf_filter=False,
        **OmegaConf.to_container(cfg.trainer),
    )
    trainer = Trainer(model=model, args=args, data_collator=collator, train_dataset=train_set, eval_dataset=dev_set)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
