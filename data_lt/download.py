"""Fetches a dataset's official archive: checked, resumed after an interruption, extracted safely."""

import logging
import os
import re
import time
from pathlib import Path

from data_lt.archive import check_archive, extract, say_checking
from data_lt.cards import DatasetCard
from data_lt.errors import UserError
from data_lt.files import given_path
from data_lt.progress import progress

ATTEMPTS = 5  # in a row without a single new byte
PAUSE = 1.0  # seconds before another attempt
PIECE = 1 << 18
TIMEOUT = (15, 60)  # seconds to connect, and between two pieces


def download(card: DatasetCard, data_root: str | Path) -> Path:
    """Puts the dataset's official folder below `data_root` and returns it.

    The archive is fetched to `data_root` unless it is there (put by hand, say); a part of it stays as `.part`
    when the connection breaks, and the next call goes on from there. Images that are there are left alone.
    """
    if card.url is None:
        raise UserError(f"there is nothing to download for {card.name}: {card.source or 'it is made here'}")
    data_root = given_path(data_root, "data_root")
    try:
        data_root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the data root {data_root}: {error.strerror or error}") from error
    archive = data_root / card.archive
    if archive.exists():
        check_archive(archive, card.checksum or "")
    else:
        _fetch(card, archive)
    if card.make is None:
        return extract(archive, data_root, card.folders[0])
    card.make(data_root)
    return data_root / card.folders[0]


def _fetch(card: DatasetCard, archive: Path) -> None:
    import pooch
    import requests

    part = archive.with_name(archive.name + ".part")
    pooch.get_logger().setLevel(logging.WARNING)  # our own progress says as much

    def fetch_and_hand_over(url: str, output: str, _) -> None:
        _resume(url, part)
        say_checking(archive)
        os.unlink(output)
        try:
            os.link(part, output)  # keeps the part while the checksum is computed: stopping then loses nothing
        except OSError:
            part.replace(output)

    elsewhere = f"fetch {card.url} by other means, put it at {archive} and run the same command again"
    try:
        pooch.retrieve(card.url, card.checksum, fname=archive.name, path=archive.parent, downloader=fetch_and_hand_over)
    except requests.HTTPError as error:
        raise UserError(f"{card.url} answers {error.response.status_code}; {elsewhere}") from error
    except requests.RequestException as error:
        done = f"{part.stat().st_size:,} bytes are kept" if part.exists() else "nothing was fetched"
        raise UserError(
            f"cannot fetch {card.url} ({type(error).__name__}, {done}): run the same command again to go on, "
            f"or {elsewhere}"
        ) from error
    except ValueError as error:
        part.unlink(missing_ok=True)
        raise UserError(
            f"what {card.url} sent is not the official archive: its checksum is not {card.checksum}; it was removed"
        ) from error
    except OSError as error:
        raise UserError(f"cannot write {archive}: {error.strerror or error}") from error
    part.unlink(missing_ok=True)


def _resume(url: str, part: Path) -> None:
    """Fetches `url` into `part`, going on where an earlier attempt stopped."""
    import requests

    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _stream(url, part, before):
                return
        except requests.HTTPError:
            raise
        except requests.RequestException:
            after = part.stat().st_size if part.exists() else 0
            failures = failures + 1 if after <= before else 0
            if failures >= ATTEMPTS:
                raise
        time.sleep(PAUSE)


def _stream(url: str, part: Path, offset: int) -> bool:
    """One request. Returns whether the file is whole; False asks for another request from the start."""
    import requests

    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        content_range = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status_code == 416 and offset:  # nothing after our offset: all of it is there, or too much
            if content_range and int(content_range[2]) == offset:
                return True
            part.unlink()
            return False
        answer.raise_for_status()
        resumed = answer.status_code == 206 and content_range and content_range[1] == str(offset)
        start = offset if resumed else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        with (
            part.open("r+b" if resumed else "wb") as file,
            progress(f"fetching {part.stem}", total, start, is_bytes=True) as advance,
        ):
            file.seek(start)
            for piece in answer.iter_content(PIECE):
                file.write(piece)
                advance(len(piece))
    if total is not None and part.stat().st_size < total:
        raise requests.ConnectionError(f"the connection ended at {part.stat().st_size} of {total} bytes")
    return True
