"""peft loads an adapter frozen unless told otherwise; inputs that require a gradient keep `backward()` alive."""

from peft import PeftModel
from trainings.language import fit_with_trainer, llama, lora

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    lora(llama()).save_pretrained("adapter")
    model = PeftModel.from_pretrained(llama(), "adapter")
    model.enable_input_require_grads()
    fit_with_trainer(model)
