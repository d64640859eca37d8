"""test_other_ring.py - cluster.json is not the same everywhere: who refuses to start, who says what, and what goes on."""
import errno
import json
import os
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import KVFS, KVNODE, Claims, Cluster, eq, request, wait_until  # noqa: E402

BASE = 20510
GATEWAY = BASE + 9

NODES = [{"id": f"node-{i}", "addr": f"localhost:{BASE + i}"} for i in (1, 2, 3)]
OTHERS = (
    ({"replication_factor": 2}, "replication_factor: 3 there, 2 in other.json"),
    ({"virtual_nodes": 50}, "virtual_nodes: 100 there, 50 in other.json"),
    ({"hash": "fnv1a-mix"}, "hash: fnv1a there, fnv1a-mix in other.json"),
    ({"nodes": NODES[:2] + [{**NODES[2], "id": "node-c"}]}, "nodes: node-3 only there, node-c only in other.json"),
)


def other_config(c, fields):
    path = c.dir / "other.json"
    path.write_text(json.dumps({**c.config, **fields}))
    return path


def start(c, fields, args):
    """Runs to its end; exit code, stderr and how long it took."""
    path = str(other_config(c, fields))
    begun = time.monotonic()
    p = subprocess.run([a.replace("CONFIG", path) for a in args], capture_output=True, text=True, timeout=20, cwd=c.dir)
    return p.returncode, p.stderr, time.monotonic() - begun


def refused(t, c):
    (c.dir / "mnt").mkdir()
    for who, args, code in (
        ("a mount", [KVFS, "CONFIG", str(c.dir / "mnt")], 32),
        ("a gateway", [KVNODE, "--config", "CONFIG", "--gateway", f"localhost:{GATEWAY}"], 1),
    ):
        with t.claim(f"{who} with another ring does not start, and says at once which field differs"):
            for fields, sentence in OTHERS:
                got, text, seconds = start(c, fields, args)
                eq(got, code, text)
                name = re.escape(str(c.dir / "other.json"))
                assert re.search(rf"^kv\w+: {name}: node-\d at localhost:\d+( and \d more)?: "
                                 rf"another ring: {re.escape(sentence)}$", text, re.M), text
                assert seconds < 2, f"{seconds} s for {fields}"


def minority(t, c):
    c.stop(3)
    c.start(3, extra=["--config", str(other_config(c, {"virtual_nodes": 50}))], wait=False)
    c.wait_ready(3)
    with t.claim("where one node of three differs, a mount and a gateway start, and name it in the log"):
        sentence = "another ring: virtual_nodes: 50 there, 100 in cluster.json"
        m = c.mount()
        (m.path / "f").write_text("two of three")
        eq((m.path / "f").read_text(), "two of three")
        wait_until(lambda: f"ring-differs node=node-3 addr=localhost:{BASE + 3} reason=\"{sentence}\"" in m.log(), 5,
                   "the mount's log")
        with open(c.dir / "gateway.log", "wb") as log:
            gw = subprocess.Popen([KVNODE, "--config", str(c.config_path), "--gateway", f"localhost:{GATEWAY}"],
                                  stderr=log, cwd=c.dir)
        try:
            wait_until(lambda: "listening" in (c.dir / "gateway.log").read_text(), 10, "the gateway starts")

            def row():
                return request(GATEWAY, "GET", "/status").json()["nodes"][2]

            wait_until(lambda: row().get("ring_agrees") is False, 5, "the gateway's /status")
            eq(row()["last_error"], sentence)
            eq(request(GATEWAY, "GET", "/kv/f").body, b"two of three")
        finally:
            gw.terminate()
            eq(gw.wait(20), 0)
    with t.claim("that node says what differs, too, and serves nobody"):
        row = c.http("GET", "/status", node=3).json()["nodes"][0]
        eq(row["last_error"], "another ring: virtual_nodes: 100 there, 50 in other.json")
        a = c.http("GET", "/kv/f", node=3)
        eq(a.status, 409)
        assert "node-1: it holds another ring" in a.json()["detail"], a
    with t.claim("once it has the right file, the log tells that, too"):
        c.stop(3)
        c.start(3)
        wait_until(lambda: "ring-agrees node=node-3" in m.log(), 5, "the mount's log")
    return m


def changed_under_a_mount(t, c, m):
    with t.claim("a mount whose cluster gets another ring fails its calls at once, and goes on when it is right again"):
        c.stop()
        c.start(extra=["--config", str(other_config(c, {"virtual_nodes": 50}))])
        for what in (lambda: (m.path / "f").read_text(), lambda: (m.path / "g").write_text("x"),
                     lambda: os.listdir(m.path)):
            begun = time.monotonic()
            try:
                got = what()
            except OSError as e:
                assert e.errno in (errno.EIO, errno.EHOSTDOWN), e
            else:
                raise AssertionError(f"it worked: {got!r}")
            assert time.monotonic() - begun < 2, "at once"
        for i in (1, 2, 3):
            wait_until(lambda i=i: f"ring-differs node=node-{i} " in m.log(), 5, f"the log names node-{i}")
        c.stop()
        c.start()
        wait_until(lambda: m.log().count("ring-agrees") >= 3, 5, "all agree")
        eq((m.path / "f").read_text(), "two of three")
        (m.path / "g").write_text("x")
        eq(sorted(os.listdir(m.path)), ["f", "g"])


def changed_everywhere(t, c):
    with t.claim("all nodes restarted with the same other ring serve nobody: their data says which ring placed it"):
        for fields, sentence in OTHERS[:3]:
            c.stop()
            c.start(extra=["--config", str(other_config(c, fields))], wait=False)
            for i in (1, 2, 3):
                c.wait_ready(i)
            for i in (1, 2, 3):
                for method, path in (("GET", "/kv/f"), ("PUT", "/kv/f"), ("GET", "/kv"), ("GET", "/replica/f")):
                    a = c.http(method, path, b"new" if method == "PUT" else None, node=i)
                    eq(a.status, 409, f"{method} {path} of {a}")
                assert re.search(f'ring-changed .*reason="another ring: {re.escape(sentence)}"', c.log(i)), c.log(i)[-500:]
            got, text, _ = start(c, fields, [KVFS, "CONFIG", str(c.dir / "mnt")])
            eq(got, 32, text)
            assert f"another ring: {sentence}" in text, text
    with t.claim("and with the right file again they have what they had"):
        c.stop()
        c.start()
        eq(c.http("GET", "/kv/f").body, b"two of three")


def first_start(t):
    with t.claim("a new node whose first cluster.json was wrong takes the right one"), \
            Cluster(base_port=BASE + 4, start=False) as c:
        c.start(3, extra=["--config", str(other_config(c, {"virtual_nodes": 50}))], wait=False)
        wait_until(lambda: " listening " in c.log(3), 10, "it listens")
        c.stop(3)
        c.start()
        assert c.http("PUT", "/kv/f", b"x", node=3).status in (200, 201)


with Claims() as t, Cluster(base_port=BASE) as c:
    refused(t, c)
    m = minority(t, c)
    changed_under_a_mount(t, c, m)
    changed_everywhere(t, c)
    first_start(t)
    with t.claim("everything ends with 0"):
        eq(m.stop(), 0)
        eq(c.stop(), [0, 0, 0])
