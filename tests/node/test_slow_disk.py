"""test_slow_disk.py - a node whose disk keeps large values waiting goes on with everything small."""
import contextlib
import http.client
import os
import pathlib
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from disks import ShimCluster  # noqa: E402
from kvtest import Claims, connect, eq, wait_until  # noqa: E402

FILE = 100_000  # bytes of a value that is a file of its own
SPOOLED = 9 << 20  # and of one that is no longer in memory on its way
N_CONNECTIONS = 24  # so that each of a node's threads has some


class Held:
    """Calls of the node's disk wait while the block runs, and large requests that need them."""

    def __init__(self, c, fault, ask, n):
        self.c, self.fault, self.ask, self.answers, self.n = c, fault, ask, [], n

    def one(self, i):
        try:
            self.answers.append(self.ask(i))
        except (OSError, http.client.HTTPException) as e:
            self.answers.append(e)

    def __enter__(self):
        self.c.fault(1, self.fault + " -1\n")
        self.threads = [threading.Thread(target=self.one, args=(i,)) for i in range(self.n)]
        for th in self.threads:
            th.start()
        return self

    def __exit__(self, *_):
        self.c.no_fault(1)
        for th in self.threads:
            th.join()


def small_ones(c, what):
    """Over many connections at once: health, a write and a read of each."""
    conns = [connect(c.port(1), timeout=15) for _ in range(N_CONNECTIONS)]
    try:
        for conn in conns:
            conn.request("GET", "/health")
        for conn in conns:
            r = conn.getresponse()
            r.read()
            eq(r.status, 200, f"health, {what}")
        for i, conn in enumerate(conns):
            conn.request("PUT", f"/kv/small-{i}", b"small")
        for conn in conns:
            r = conn.getresponse()
            r.read()
            assert r.status in (200, 201), (what, r.status)
        for i, conn in enumerate(conns):
            conn.request("GET", f"/kv/small-{i}")
        for conn in conns:
            eq(conn.getresponse().read(), b"small", what)
    finally:
        for conn in conns:
            conn.close()


def n_values(c):
    return sum(1 for _ in c.data_dir(1).glob("values/*/*"))


def spooled(c):
    lines = c.http("GET", "/metrics").body.decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("kvfs_spool_bytes "))


def n_spools(c):
    """Temporary files that the node has open."""
    n = 0
    for fd in pathlib.Path(f"/proc/{c.pid(1)}/fd").iterdir():
        with contextlib.suppress(OSError):
            n += str(c.data_dir(1)) in (name := os.readlink(fd)) and "(deleted)" in name
    return n


def body(i, size):
    return (b"%d;" % i * (size // 2 + 1))[:size]


def put(c, i, size):
    return c.http("PUT", f"/kv/large-{i}", body(i, size), timeout=60).status


def check(c, held, size):
    """Whatever had too little time for it: in the end all of it is stored."""
    assert all(a in (200, 201, 503) for a in held.answers), held.answers
    for i in range(held.n):
        wait_until(lambda i=i: put(c, i, size) in (200, 201), 30, "it is stored")
        eq(c.http("GET", f"/kv/large-{i}", timeout=60).body, body(i, size))


def syncs(t, c):
    before = n_values(c)
    with t.claim("while a disk is long to sync large values, small requests and health are answered"), \
            Held(c, "sync values/", lambda i: put(c, i, FILE), 24) as held:
        wait_until(lambda: n_values(c) - before >= 4, 20, "large values are being synced")
        small_ones(c, "syncs")
    with t.claim("afterwards they are stored"):
        check(c, held, FILE)


def writes(t, c):
    before = n_values(c)
    with t.claim("so are they while it is long to write them"), \
            Held(c, "write values/", lambda i: put(c, i, 3 * FILE), 24) as held:
        wait_until(lambda: n_values(c) - before >= 4, 20, "large values are being written")
        small_ones(c, "writes")
    with t.claim("these are stored as well"):
        check(c, held, 3 * FILE)


def bodies(t, c):
    with t.claim("and while it is long to take bodies that are too large for memory"), \
            Held(c, "write (deleted)", lambda i: put(c, i, SPOOLED), 10) as held:
        wait_until(lambda: spooled(c) >= 10 * SPOOLED, 20, "they come")
        small_ones(c, "bodies")
    with t.claim("which are stored, too"):
        check(c, held, SPOOLED)


def reads(t, c):
    def get(i):
        return c.http("GET", f"/kv/large-{i}", timeout=60).body == body(i, SPOOLED)

    with t.claim("and while it is long to read them"), Held(c, "read values/", get, 10) as held:
        small_ones(c, "reads")
    with t.claim("the readers get them"):
        wait_until(lambda: all(get(i) for i in range(held.n)), 30, "all are read")


def appends(t, c):
    def append(i):
        return c.http("POST", f"/kv/large-{i}?append", b"the end", timeout=60).status

    with t.claim("and while it is long to write down what is appended to"), Held(c, "write (deleted)", append, 4) as held:
        wait_until(lambda: n_spools(c) >= 4, 20, "it comes")
        small_ones(c, "appends")
    with t.claim("it is appended once"):
        for i in range(held.n):
            want = body(i, SPOOLED) + b"the end" * (held.answers[i] == 200)
            eq(c.http("GET", f"/kv/large-{i}", timeout=60).body, want)


def stop(t, c):
    with t.claim("a node that is told to stop meanwhile ends when its disk has"):
        with Held(c, "sync values/", lambda i: put(c, i, FILE), 24):
            wait_until(lambda: c.http("GET", "/health").status == 200, 10, "it is there")
            stopper = threading.Thread(target=lambda: codes.extend(c.stop()))
            codes = []
            stopper.start()
            wait_until(lambda: "stopping" in c.log(1).rsplit("--- start", 1)[-1], 10, "it stops")
        stopper.join()
        eq(codes, [0])
    with t.claim("nothing acknowledged is missing, and no file is left over"):
        c.start()
        with contextlib.suppress(OSError, http.client.HTTPException):
            for i in range(24):
                wait_until(lambda i=i: put(c, i, FILE) in (200, 201), 30, "it is stored")
        wait_until(lambda: n_values(c) == 24, 20, "one file each")


with Claims() as t, ShimCluster(n=1, rf=1, base_port=22600) as c:
    c.start()
    syncs(t, c)
    writes(t, c)
    bodies(t, c)
    reads(t, c)
    appends(t, c)
    stop(t, c)
