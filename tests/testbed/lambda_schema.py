"""The shapes of Lambda's requests and answers, from its OpenAPI description 1.10.0, and a check of values against them.

A shape is a type; a `Text`; a list of one shape; a dict of shapes, in which a key that ends in `?` may be missing and no
other key may stand; a `Table` of one shape under any key; or a tuple of alternatives.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class Text(NamedTuple):
    """Text of some lengths, or of a pattern."""

    most: int = 1_000_000
    least: int = 0
    pattern: str = ""


class Whole(NamedTuple):
    """A list with exactly so many of a shape."""

    count: int
    shape: Any


class Table(NamedTuple):
    """Values of a shape under any key."""

    shape: Any


REGION = {"name": str, "description": str}
TAG = {"key": Text(55, 1, r"[a-z][a-z0-9-:]+"), "value": Text(128)}
MOUNT = {"mount_point": Text(256, 1, r"(/home|/lambda/nfs|/data)[//a-zA-Z0-9-]*"), "file_system_id": str}
SPECS = {"vcpus": int, "memory_gib": int, "storage_gib": int, "gpus": int}
TYPE = {"name": str, "description": str, "gpu_description": str, "price_cents_per_hour": int, "specs": SPECS}
ACTION = {"available": bool, "reason_code?": str, "reason_description?": str}
INSTANCE = {
    "id": str,
    "name?": Text(64),
    "ip?": str,
    "private_ip?": str,
    "status": Text(pattern="booting|active|unhealthy|terminated|terminating|preempted"),
    "ssh_key_names": [str],
    "file_system_names": [str],
    "file_system_mounts?": [MOUNT],
    "region": REGION,
    "instance_type": TYPE,
    "hostname?": str,
    "jupyter_token?": str,
    "jupyter_url?": str,
    "actions": dict.fromkeys(("migrate", "rebuild", "restart", "cold_reboot", "terminate"), ACTION),
    "tags?": [{"key": str, "value": str}],
    "firewall_rulesets?": [{"id": str}],
}
KEY = {"id": str, "name": Text(64, 1), "public_key": Text(4096, 1)}
USER = {"id": str, "email": str, "status": str}
FILE_SYSTEM = {
    "id": str,
    "name": str,
    "mount_point": str,
    "created": str,
    "created_by": USER,
    "is_in_use": bool,
    "region": REGION,
    "bytes_used?": int,
}
IMAGE = {
    **dict.fromkeys(("id", "created_time", "updated_time", "name", "description", "family", "version"), str),
    "architecture": str,
    "region": REGION,
}
FIREWALL = {"id": str, "name": str, "region": REGION}
OFFER = {"instance_type": TYPE, "regions_with_capacity_available": [REGION]}
ERROR = {"error": {"code": str, "message": str, "suggestion?": str}}

REQUESTS = {
    "launch": {
        "region_name": str,
        "instance_type_name": str,
        "ssh_key_names": Whole(1, str),
        "name?": Text(64),
        "hostname?": Text(63, 1, r"[a-z0-9][0-9a-z-]{0,62}"),
        "file_system_names?": [str],
        "file_system_mounts?": [MOUNT],
        "image?": ({"id": str}, {"family": str}),
        "user_data?": Text(1_000_000),
        "tags?": [TAG],
        "firewall_rulesets?": [{"id": str}],
    },
    "terminate": {"instance_ids": [str]},
    "rename": {"name?": Text(64)},
    "add_key": {"name": Text(64, 1), "public_key?": Text(4096, 1)},
}
ANSWERS = {
    "types": Table(OFFER),
    "launch": {"instance_ids": [str]},
    "instances": [INSTANCE],
    "instance": INSTANCE,
    "rename": INSTANCE,
    "terminate": {"terminated_instances": [INSTANCE]},
    "keys": [KEY],
    "add_key": (KEY, {**KEY, "private_key": str}),
    "delete_key": {},
    "file_systems": [FILE_SYSTEM],
    "images": [IMAGE],
    "firewalls": [FIREWALL],
}


def mistakes(value: Any, shape: Any, where: str = "") -> list[str]:
    """Return what is wrong with a value, each with its place."""
    if isinstance(shape, dict):
        return _of_object(value, shape, where)
    if isinstance(shape, list):
        is_list = isinstance(value, list)
        items = enumerate(value) if is_list else ()
        return [*([] if is_list else [f"{where}: no list"]), *_each(items, shape[0], where)]
    if isinstance(shape, Whole):
        wrong = not isinstance(value, list) or len(value) != shape.count
        return (
            [f"{where}: expected exactly {shape.count}"] if wrong else mistakes(value, [shape.shape], where)
        )
    if isinstance(shape, Table):
        return (
            _each(value.items(), shape.shape, where) if isinstance(value, dict) else [f"{where}: no object"]
        )
    if isinstance(shape, Text):
        return _of_text(value, shape, where)
    if isinstance(shape, tuple):
        found = [mistakes(value, one, where) for one in shape]
        return [] if [] in found else found[0]
    return [] if type(value) is shape else [f"{where}: expected {shape.__name__}"]


def _each(items: Any, shape: Any, where: str) -> list[str]:
    return [wrong for key, item in items for wrong in mistakes(item, shape, f"{where}[{key}]")]


def _of_object(value: Any, shape: dict[str, Any], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: no object"]
    shapes = {key.removesuffix("?"): one for key, one in shape.items()}
    found = [f"{where}.{key}: missing" for key in shape if not key.endswith("?") and key not in value]
    found += [f"{where}.{key}: unknown" for key in value if key not in shapes]
    for key, one in value.items():
        if key in shapes:
            found += mistakes(one, shapes[key], f"{where}.{key}")
    return found


def _of_text(value: Any, shape: Text, where: str) -> list[str]:
    if not isinstance(value, str):
        return [f"{where}: no text"]
    if not shape.least <= len(value) <= shape.most:
        return [f"{where}: {len(value)} characters, expected {shape.least} to {shape.most}"]
    if shape.pattern and not re.fullmatch(shape.pattern, value):
        return [f"{where}: does not match {shape.pattern}"]
    return []
