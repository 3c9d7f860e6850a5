"""Downloads from a small server of our own: whole, broken off, resumed, tampered with, refused."""

import dataclasses
import hashlib
import io
import re
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import data_lt.download as module
from data_lt import CARDS
from data_lt.download import download, extract
from data_lt.errors import UserError

FILES = {
    "CUB_200_2011/images.txt": b"1 a/1.jpg\n",
    "CUB_200_2011/images/a/1.jpg": bytes(range(256)) * 900,
    "CUB_200_2011/images/b/2.jpg": b"two",
    "attributes.txt": b"beside the folder",
}


def tar_bytes(files=FILES, members=(), mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in members:
            tar.addfile(info)
    return buffer.getvalue()


class Server:
    """Serves `content`; `cuts` holds after how many bytes each of the next answers breaks off."""

    def __init__(self):
        self.content, self.cuts, self.ranges, self.honours_range, self.status = b"", [], [], True, 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/files/CUB_200_2011.tgz"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.honours_range else 0
        size = len(self.content)
        if self.status != 200:
            request.send_error(self.status)
            return
        if start >= size > 0:
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{size}")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        request.send_header("Content-Length", str(size - start))
        request.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        request.wfile.write(self.content[start:] if cut is None else self.content[start : start + cut])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr(module, "PIECE", 1 << 12)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def card_for(server, content):
    server.content = content
    return dataclasses.replace(CARDS["cub_lt"], url=server.url, checksum="md5:" + hashlib.md5(content).hexdigest())


def tree(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


WHOLE = {name: content for name, content in FILES.items() if name.startswith("CUB_200_2011/")}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_archive_is_fetched_checked_and_extracted(server, tmp_path, mode):
    content = tar_bytes(mode=mode)
    folder = download(card_for(server, content), tmp_path / "new" / "data")
    assert folder == tmp_path / "new/data/CUB_200_2011"
    assert tree(tmp_path / "new/data") == {**WHOLE, "CUB_200_2011.tgz": content}
    assert server.ranges == [None]


def test_broken_connection_is_resumed_where_it_stopped(server, tmp_path):
    content = tar_bytes()
    server.cuts = [50_000, 30_000]
    download(card_for(server, content), tmp_path)
    assert tree(tmp_path) == {**WHOLE, "CUB_200_2011.tgz": content}
    offsets = [int(re.search(r"\d+", r)[0]) for r in server.ranges[1:]]
    assert server.ranges[0] is None and len(offsets) == 2
    assert 45_000 < offsets[0] <= 50_000 < offsets[1] <= 80_000


def test_interrupted_download_keeps_its_part_and_resumes(server, tmp_path):
    content = tar_bytes()
    card = card_for(server, content)
    server.cuts = [60_000] + [0] * module.ATTEMPTS
    with pytest.raises(UserError, match=r"bytes are kept\): run the same command again .*put it at .*\.tgz"):
        download(card, tmp_path)
    (part,) = tmp_path.iterdir()
    assert part.name == "CUB_200_2011.tgz.part" and part.read_bytes() == content[: part.stat().st_size]
    server.ranges.clear()
    download(card, tmp_path)
    assert server.ranges == [f"bytes={part_size(content, server.ranges[0])}-"]
    assert tree(tmp_path) == {**WHOLE, "CUB_200_2011.tgz": content}


def part_size(content, header):
    offset = int(re.search(r"\d+", header)[0])
    assert 50_000 < offset < len(content)
    return offset


def test_interruption_while_fetching_leaves_only_the_part(server, tmp_path, monkeypatch):
    content = tar_bytes()
    card = card_for(server, content)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "checksum", interrupt)  # Ctrl-C while the checksum is computed
        with pytest.raises(KeyboardInterrupt):
            download(card, tmp_path)
    assert tree(tmp_path) == {"CUB_200_2011.tgz.part": content}
    download(card, tmp_path)
    assert server.ranges[-1] == f"bytes={len(content)}-"  # nothing is fetched twice
    assert tree(tmp_path) == {**WHOLE, "CUB_200_2011.tgz": content}


@pytest.mark.parametrize("size", [70_000, 10**6])
def test_download_restarts_without_range_support_or_with_a_bad_part(server, tmp_path, size):
    content = tar_bytes()
    server.honours_range = size > len(content)
    (tmp_path / "CUB_200_2011.tgz.part").write_bytes(b"x" * size)
    download(card_for(server, content), tmp_path)
    assert tree(tmp_path) == {**WHOLE, "CUB_200_2011.tgz": content}


def test_tampered_archive_is_removed(server, tmp_path):
    card = card_for(server, tar_bytes())
    server.content = tar_bytes({**FILES, "CUB_200_2011/images/b/2.jpg": b"evil"})
    with pytest.raises(UserError, match=r"is not the official archive: its checksum is not md5:"):
        download(card, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_archive_put_by_hand_is_used_or_refused(server, tmp_path):
    content = tar_bytes()
    card = card_for(server, content)
    (tmp_path / "CUB_200_2011.tgz").write_bytes(content)
    download(card, tmp_path)
    assert server.ranges == []
    (tmp_path / "CUB_200_2011.tgz").write_bytes(content[:-7])
    with pytest.raises(UserError, match=r"CUB_200_2011.tgz is not the official archive: .*remove it"):
        download(card, tmp_path)


def test_missing_network_raises_one_sentence_with_a_remedy(server, tmp_path):
    card = card_for(server, tar_bytes())
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(UserError) as caught:
        download(card, tmp_path)
    assert card.url in str(caught.value) and f"put it at {tmp_path / 'CUB_200_2011.tgz'}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_download_address_raises_user_error(server, tmp_path):
    card = card_for(server, tar_bytes())
    server.status = 404
    with pytest.raises(UserError, match=r"answers 404; download .* by other means"):
        download(card, tmp_path)
    assert len(server.ranges) == 1 and list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="nothing to download for folder_lt"):
        download(CARDS["folder_lt"], tmp_path)


def link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("files", "members"),
    [
        ({"../evil.jpg": b"x"}, ()),
        ({"CUB_200_2011/../../evil.jpg": b"x"}, ()),
        ({"/tmp/pilot-tal-evil.jpg": b"x"}, ()),
        ({"..\\evil.jpg": b"x"}, ()),
        ({"C:\\evil.jpg": b"x"}, ()),
        ({"CUB_200_2011/" + "d/" * 1900 + "evil.jpg": b"x"}, ()),
        ({}, [link("CUB_200_2011/out", "/etc", tarfile.SYMTYPE)]),
        ({}, [link("CUB_200_2011/in.jpg", "images/a/1.jpg", tarfile.SYMTYPE)]),
        ({}, [link("CUB_200_2011/hard", "../../x", tarfile.LNKTYPE)]),
        ({}, [link("CUB_200_2011/fifo", "", tarfile.FIFOTYPE)]),
        ({}, [link("CUB_200_2011/device", "", tarfile.CHRTYPE)]),
    ],
)
def test_unsafe_members_are_refused_and_nothing_stays(tmp_path, files, members):
    target = tmp_path / "deep" / "data"
    target.mkdir(parents=True)
    (tmp_path / "evil.tar").write_bytes(tar_bytes({**WHOLE, **files}, members))
    with pytest.raises(UserError, match="is not safe: its member"):
        extract(tmp_path / "evil.tar", target, "CUB_200_2011")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["data", "deep", "evil.tar"]


def test_folder_named_like_the_archive_raises_user_error(server, tmp_path):
    (tmp_path / "CUB_200_2011.tgz").mkdir()
    with pytest.raises(UserError, match=r"cannot read the archive .*CUB_200_2011.tgz: Is a directory"):
        download(card_for(server, tar_bytes()), tmp_path)
    assert server.ranges == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar_bytes(mode="w:gz")[:-900], "cannot read the archive"),
        (tar_bytes()[:100_000], "cannot read the archive"),
        (b"no archive", "cannot read the archive"),
        (tar_bytes({"other/1.jpg": b""}), "holds no folder CUB_200_2011/"),
    ],
)
def test_broken_and_other_archives_leave_nothing(tmp_path, content, words):
    (tmp_path / "a.tgz").write_bytes(content)
    with pytest.raises(UserError, match=words):
        extract(tmp_path / "a.tgz", tmp_path, "CUB_200_2011")
    assert [p.name for p in tmp_path.iterdir()] == ["a.tgz"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_interrupted_extraction_leaves_nothing(tmp_path, monkeypatch, failure):
    (tmp_path / "a.tar").write_bytes(tar_bytes())
    original, calls = tarfile.TarFile.extract, []

    def fail_late(self, member, *args, **kwargs):
        calls.append(member)
        if len(calls) == 3:
            raise failure
        return original(self, member, *args, **kwargs)

    monkeypatch.setattr(tarfile.TarFile, "extract", fail_late)
    with pytest.raises((KeyboardInterrupt, UserError)):
        extract(tmp_path / "a.tar", tmp_path, "CUB_200_2011")
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar"]


def test_incomplete_folder_is_completed_and_other_files_stay(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes())
    (tmp_path / "CUB_200_2011/images/b").mkdir(parents=True)
    (tmp_path / "CUB_200_2011/images/b/2.jpg").write_bytes(b"cut")
    (tmp_path / "CUB_200_2011/mine.txt").write_bytes(b"mine")
    extract(tmp_path / "a.tar", tmp_path, "CUB_200_2011")
    found = tree(tmp_path)
    found.pop("a.tar")
    assert found == {**WHOLE, "CUB_200_2011/mine.txt": b"mine"}
