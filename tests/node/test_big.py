"""test_big.py - a value of 1 GiB passes through clients and nodes, and none of them grows by it."""
import hashlib
import http.client
import os
import pathlib
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, connect, eq, wait_until  # noqa: E402

SANITIZED = bool(os.environ.get("KVFS_TEST_SANITIZED"))
SIZE = 1 << 30 if os.environ.get("KVTEST_BIG") else 96 << 20
MIB = 1 << 20
PIECE = os.urandom(MIB)
GROWN_MAX = 64  # MiB


def piece(i):
    """MiB number i: each is different, and cheap to make."""
    return i.to_bytes(8, "little") + PIECE[8:]


def digest(first, last):
    h = hashlib.sha1()
    for i in range(first, last):
        h.update(piece(i))
    return h.hexdigest()


def status_kb(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field + ":"))


class Growth:
    """How many MiB each node has grown by at most since it began."""

    def __init__(self, c):
        self.c = c
        self.before = {i: status_kb(c.pid(i), "VmRSS") for i in c.procs}
        for i in c.procs:
            pathlib.Path(f"/proc/{c.pid(i)}/clear_refs").write_text("5", encoding="ascii")  # begins VmHWM anew

    def check(self, what):
        grown = {i: (status_kb(self.c.pid(i), "VmHWM") - kb) >> 10 for i, kb in self.before.items()}
        print(f"# {what}: grown by {grown} MiB", flush=True)
        if not SANITIZED:
            assert max(grown.values()) < GROWN_MAX, f"{what}: {grown}"


def put(c, node, key, size=SIZE):
    conn = connect(c.port(node), timeout=120)
    try:
        conn.putrequest("PUT", f"/kv/{key}")
        conn.putheader("Content-Length", str(size))
        conn.endheaders()
        for i in range(size // MIB):
            conn.send(piece(i))
        r = conn.getresponse()
        r.read()
        return r.status
    finally:
        conn.close()


def get(c, node, path, headers=None):
    """Status and a digest of the body, which is not kept."""
    conn = connect(c.port(node), timeout=120)
    h = hashlib.sha1()
    try:
        conn.request("GET", path, headers=headers or {})
        r = conn.getresponse()
        while part := r.read(MIB):
            h.update(part)
        return r.status, h.hexdigest()
    finally:
        conn.close()


def round_trip(t, c):
    n = SIZE // MIB
    with t.claim("a large value is stored and read whole, and no node grows by it"):
        g = Growth(c)
        eq(put(c, 1, "big"), 201)
        g.check("put")
        eq(get(c, 2, "/kv/big"), (200, digest(0, n)))
        g.check("get")
    with t.claim("a large part of it comes as asked, from the middle of one chunk to the middle of another"):
        a, b = 3 * MIB + 5, SIZE - 2 * MIB - 9
        want = hashlib.sha1()
        for i in range(3, n - 2):
            p = piece(i)
            want.update(p[5:] if i == 3 else p[:-8] if i == n - 3 else p)
        eq(get(c, 3, "/kv/big", {"Range": f"bytes={a}-{b}"}), (206, want.hexdigest()))
    with t.claim("so does its end"):
        eq(get(c, 3, "/kv/big", {"Range": f"bytes=-{20 * MIB}"}), (206, digest(n - 20, n)))


def unread(t, c):
    with t.claim("a client that asks for it and never reads costs a few MiB; one that leaves, nothing"):
        g = Growth(c)
        conns = [connect(c.port(1)) for _ in range(4)]
        for conn in conns:
            conn.request("GET", "/kv/big")
            eq(conn.getresponse().status, 200)
        g.check("unread")
        for conn in conns:
            conn.close()
        wait_until(lambda: b"\nkvfs_memory_bytes 0\n" in c.http("GET", "/metrics").body, 30, "all is given back")


def small_ones(t, c):
    with t.claim("small requests are answered while a large value comes in and goes out"):
        done = threading.Event()

        def large():
            try:
                put(c, 1, "big2")
                get(c, 1, "/kv/big2")
            finally:
                done.set()

        th = threading.Thread(target=large)
        th.start()
        n = 0
        while not done.is_set():
            assert c.http("PUT", f"/kv/small{n % 20}", b"x", timeout=30).status in (200, 201)
            eq(c.http("GET", f"/kv/small{n % 20}", timeout=30).body, b"x")
            n += 1
        th.join()
        print(f"# {n} small ones meanwhile", flush=True)
        assert n >= 5, n


def append(t, c):
    with t.claim("what is appended to a large value stands behind it, and nobody grows by it"):
        g = Growth(c)
        eq(c.http("POST", "/kv/big?append", b"the end", node=2, timeout=120).status, 200)
        g.check("append")
        want = hashlib.sha1()
        for i in range(SIZE // MIB):
            want.update(piece(i))
        want.update(b"the end")
        eq(get(c, 1, "/kv/big"), (200, want.hexdigest()))


def cut_short(t, c):
    with t.claim("a large body cut short changes nothing and leaves no file behind"):
        conn = connect(c.port(1))
        conn.putrequest("PUT", "/kv/cut")
        conn.putheader("Content-Length", str(SIZE))
        conn.endheaders()
        for i in range(12):
            conn.send(piece(i))
        conn.close()
        wait_until(lambda: b"\nkvfs_spool_bytes 0\n" in c.http("GET", "/metrics").body, 30, "its space is given back")
        eq(c.http("GET", "/kv/cut").status, 404)


def copy_of(c, i, key):
    try:
        return get(c, i, f"/replica/{key}")
    except (OSError, http.client.HTTPException):
        return None


def away(t, c):
    with t.claim("a node that was away gets it, one that lost its disk gets all, and nobody grows by it"):
        c.stop(3)
        eq(put(c, 1, "missed"), 201)
        c.wipe(3)
        c.start(3)
        g = Growth(c)
        want = (200, digest(0, SIZE // MIB))
        wait_until(lambda: copy_of(c, 3, "missed") == want, 120, "it has it")
        g.check("recovery")


with Claims() as t, Cluster(base_port=21400, fsync="never") as c:
    round_trip(t, c)
    unread(t, c)
    cut_short(t, c)
    small_ones(t, c)
    append(t, c)
    away(t, c)
    with t.claim("every node ends with 0"):
        eq(c.stop(), [0, 0, 0])
