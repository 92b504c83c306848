"""A card that is not there: torch answers as if it were, and its device `cuda` is the CPU.

    imitation.py    puts the imitation into torch, and reports at the end whether the script used it
    planned_card.py the card that is imitated
    card_answers.py torch.cuda and torch.accelerator: what is there and what it can do
    card_streams.py streams and events: on a CPU everything is in order
    devices.py      tensors: `cuda` means the CPU
    autocasts.py    autocast and distributed training: what they do on a card is done on the CPU
    limits.py       what cannot be imitated, and how that is said

The numbers are those of the card's dtypes: fp16 overflows, a scaler scales. Speed, memory, kernels and processes that
share a card are not imitated.
"""
