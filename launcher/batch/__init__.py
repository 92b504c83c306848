"""Many launches in one command: the file or grid, the queue on disk, the worker, and the results.

`batch_file` reads what people write, `batch_queue` keeps each item's state, `batch_worker` works it, `batch_results` writes the table.
An item is an ordinary run: `batch_item` launches and follows it by the rooms below.
"""

FRONT_DOOR = (
    "batch_budget",
    "batch_file",
    "batch_index",
    "batch_preview",
    "batch_queue",
    "batch_removal",
    "batch_results",
    "batch_status",
    "batch_stop",
    "batch_usage",
    "batch_worker",
    "item_view",
    "queued_item",
)
"""The modules that other rooms may import."""
