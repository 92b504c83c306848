"""Many launches in one command: the file or grid, the queue on disk, the worker, and the results.

`input/` reads the user's file or grid, `batch_queue` stores the state of each item, `batch_worker`
launches and follows the items, and `batch_results` writes the table. An item is an ordinary run: `batch_item`
launches and follows it through the lower packages.
"""

FRONT_DOOR = (
    "batch_budget",
    "batch_index",
    "batch_queue",
    "batch_removal",
    "batch_results",
    "batch_status",
    "batch_stop",
    "batch_usage",
    "batch_worker",
    "input.batch_file",
    "input.batch_preview",
    "item_view",
    "queued_item",
)
"""The modules that other packages may import."""
