"""Reads the file of an offline W&B run: records of protocol buffers in LevelDB's log format, after a short header."""

import json
import struct
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER, CHUNK = 32768, 7, 7


def records(file: Path) -> list[Record]:
    data, place, parts, found = file.read_bytes(), HEADER, b"", []
    while place + CHUNK <= len(data):
        left = BLOCK - place % BLOCK
        if left < CHUNK:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + CHUNK])
        if place + CHUNK + size > len(data):  # still being written
            break
        parts += data[place + CHUNK : place + CHUNK + size]
        place += CHUNK + size
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(Record.FromString(parts))
            parts = b""
    return found


def history(file: Path) -> list[dict]:
    rows = []
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows
