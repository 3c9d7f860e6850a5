"""A small server that speaks the hub's endpoints for models, for huggingface_hub's own client.

It knows repositories, commits of whole files and revisions. It has no large-file storage, pull requests or gating.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

TOKEN = "hf_" + "t" * 34


class HubServer(ThreadingHTTPServer):
    """`repos`: name → {"private", "commits": [(oid, {path: bytes})]}."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.repos.get(name, {}).get("commits", [])
        found = commits[-1:] if revision == "main" else [one for one in commits if one[0] == revision]
        return found[0] if found else None


class Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *_):
        pass

    def answer(self, status: int, content=b"", headers=()):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = unquote(self.path).split("?")[0].strip("/").split("/")
        if not self.allowed() and parts != ["api", "validate-yaml"]:
            return self.answer(401, {"error": "Invalid username or password."})
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else f"me/{asked['name']}"
            if name in self.server.repos:
                return self.answer(409, {"url": f"{self.server.address}/{name}"})
            self.server.repos[name] = {"private": asked.get("visibility") == "private", "commits": []}
            return self.answer(200, {"url": f"{self.server.address}/{name}"})
        if parts == ["api", "validate-yaml"]:
            return self.answer(200, {"warnings": [], "errors": []})
        name = "/".join(parts[2:4])
        if name not in self.server.repos:
            return self.answer(404, {"error": "not found"}, [("X-Error-Code", "RepoNotFound")])
        if parts[4] == "preupload":
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in names]
            return self.answer(200, {"files": modes})
        lines = [json.loads(line) for line in body.decode().splitlines()]
        before = dict(self.server.repos[name]["commits"][-1][1]) if self.server.repos[name]["commits"] else {}
        before |= {
            one["value"]["path"]: base64.b64decode(one["value"]["content"]) for one in lines if one["key"] == "file"
        }
        oid = hashlib.sha1(repr(sorted(before.items())).encode()).hexdigest()
        self.server.repos[name]["commits"].append((oid, before))
        return self.answer(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{name}/commit/{oid}"}
        )

    def do_GET(self):
        parts = unquote(self.path).split("?")[0].strip("/").split("/")
        api = parts[0] == "api"
        name, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        repo = self.server.repos.get(name)
        if repo is None or (repo["private"] and not self.allowed()):
            return self.answer(401, {"error": "Repository not found"}, [("X-Error-Code", "RepoNotFound")])
        revision = rest[1] if len(rest) > 1 else "main"
        found = self.server.files(name, revision)
        if found is None:
            return self.answer(404, {"error": "Revision not found"}, [("X-Error-Code", "RevisionNotFound")])
        oid, files = found
        if api and rest[:1] == ["tree"]:
            entries = [{"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                       for path, data in files.items()]  # fmt: skip
            return self.answer(200, entries)
        if api:
            siblings = [{"rfilename": path} for path in files]
            return self.answer(200, {"id": name, "sha": oid, "private": bool(repo["private"]), "siblings": siblings})
        path = "/".join(rest[2:])
        if path not in files:
            return self.answer(404, b"", [("X-Error-Code", "EntryNotFound")])
        seal = hashlib.sha1(files[path]).hexdigest()
        return self.answer(200, files[path], [("ETag", f'"{seal}"'), ("X-Repo-Commit", oid)])

    do_HEAD = do_GET
