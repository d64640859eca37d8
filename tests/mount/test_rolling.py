"""test_rolling.py - every node is restarted in turn while files and keys are read and written: no operation fails."""
import contextlib
import http.client
import os
import select
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import KVNODE, Claims, Cluster, connect, eq, request, wait_until  # noqa: E402

BASE = 20540
GATEWAY = BASE + 9
ROUNDS = int(os.environ.get("KVTEST_ROLLING_ROUNDS", "2"))


class Worker(threading.Thread):
    """Repeats once(n) until stopped; what it raises is a failed operation."""

    def __init__(self, stopped):
        super().__init__()
        self.stopped, self.n, self.failed, self.slowest = stopped, 0, [], 0.0

    def run(self):
        while not self.stopped.is_set():
            begun = time.monotonic()
            try:
                self.once(self.n)
            except Exception as e:
                self.failed.append(f"{type(self).__name__} number {self.n}: {type(e).__name__}: {e}")
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.n += 1


class Files(Worker):
    """Writes, reads back, lists and removes in a mount."""

    def __init__(self, stopped, path, name):
        super().__init__(stopped)
        self.path, self.name = path, name
        (path / name).mkdir()

    def once(self, n):
        f = self.path / self.name / f"f{n % 7}"
        text = f"{self.name} {n} " * (20_000 if n % 20 == 0 else 3)
        f.write_text(text)
        eq(f.read_text(), text)
        assert f.name in os.listdir(f.parent)
        if n % 3 == 0:
            f.unlink()


class Keys(Worker):
    """Writes and reads by HTTP, through a port that choose() names; each request on a new connection or a kept one."""

    def __init__(self, stopped, name, choose, keep):
        super().__init__(stopped)
        self.name, self.choose, self.keep, self.conns = name, choose, keep, {}

    def call(self, method, path, body=None, headers=None):
        port = self.choose()
        if not self.keep:
            return request(port, method, path, body, headers)
        conn = self.conns.pop(port, None)
        if conn is None or select.select([conn.sock], [], [], 0)[0]:  # closed meanwhile, as pools of connections look
            conn = connect(port)
        a = request(port, method, path, body, headers, conn=conn)
        if a.headers.get("Connection") == "close":
            conn.close()
        else:
            self.conns[port] = conn
        return a

    def once(self, n):
        value = f"{self.name} {n} ".encode() * (20_000 if n % 20 == 0 else 3)
        a = self.call("PUT", f"/kv/{self.name}/{n % 5}", value)
        assert a.status in (200, 201), a
        a = self.call("GET", f"/kv/{self.name}/{n % 5}")
        eq((a.status, a.body), (200, value))
        a = self.call("GET", f"/kv?prefix={self.name}/")
        eq(a.status, 200, "the listing")
        a = self.call("POST", f"/kv/{self.name}.log?append", f"{n};".encode())
        assert a.status in (200, 201), a
        a = self.call("PUT", f"/kv/{self.name}.once/{n}", b"", {"If-None-Match": "*"})
        eq(a.status, 201, "a key that nobody else makes")
        a = self.call("DELETE", f"/kv/{self.name}.once/{n}")
        eq(a.status, 204, "a key that nobody else removes")


class Direct(Worker):
    """
    Talks to the node that is restarted. What it asked is answered, in full, or the connection was refused or closed
    before anything came: then, as by any client, it is asked again elsewhere.
    """

    def __init__(self, stopped, c):
        super().__init__(stopped)
        self.c, self.conns, self.moved = c, {}, 0

    def once(self, n):
        node = 1 + n % 3
        conn = self.conns.pop(node, None)
        try:
            if conn is None:
                conn = connect(self.c.port(node))
            a = request(0, "GET" if n % 2 else "PUT", "/kv/direct", None if n % 2 else b"direct" * 1000, conn=conn)
        except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
            self.moved += 1
            return
        assert a.status in (200, 201), a
        if n % 2:
            eq(a.body, b"direct" * 1000)
        if a.headers.get("Connection") != "close":
            self.conns[node] = conn


@contextlib.contextmanager
def gateway(c):
    with open(c.dir / "gateway.log", "wb") as log:
        p = subprocess.Popen([KVNODE, "--config", str(c.config_path), "--gateway", f"localhost:{GATEWAY}"], stderr=log,
                             cwd=c.dir)
    try:
        wait_until(lambda: "listening" in (c.dir / "gateway.log").read_text(), 20, "the gateway starts")
        yield
        p.terminate()
        eq(p.wait(20), 0, "the gateway's exit code")
    finally:
        p.kill()
        p.wait()


def rolling(c):
    stopped, away = threading.Event(), set()

    def someone_else():
        return c.port(next(i for i in (2, 3, 1) if i not in away))

    m = c.mount()
    c.http("PUT", "/kv/direct", b"direct" * 1000)
    workers = [Files(stopped, m.path, "a"), Files(stopped, m.path, "b"),
               Keys(stopped, "gw", lambda: GATEWAY, keep=False), Keys(stopped, "gwk", lambda: GATEWAY, keep=True),
               Keys(stopped, "other", someone_else, keep=False), Keys(stopped, "otherk", someone_else, keep=True),
               Direct(stopped, c)]
    for w in workers:
        w.start()
    times = []
    try:
        for _ in range(ROUNDS):
            for i in c.nodes():
                away.add(i)
                before = [w.n for w in workers]
                wait_until(lambda: all(w.n > n + 1 for w, n in zip(workers, before)), 30, "all work on")
                begun = time.monotonic()
                eq(c.stop(i), [0], f"node-{i}'s exit code")
                times.append(time.monotonic() - begun)
                before = [w.n for w in workers]
                wait_until(lambda: all(w.n > n + 1 for w, n in zip(workers, before)), 30, "all work without it")
                c.start(i)
                away.discard(i)
    finally:
        stopped.set()
        for w in workers:
            w.join()
    print(f"# stops took {max(times):.2f} s at most; " +
          ", ".join(f"{type(w).__name__} {w.n} (slowest {w.slowest:.2f} s)" for w in workers), flush=True)
    failed = [f for w in workers for f in w.failed]
    eq(failed[:3], [], f"{len(failed)} failed operations")
    for w in workers[2:6]:
        eq(c.http("GET", f"/kv/{w.name}.log").body, b"".join(b"%d;" % n for n in range(w.n)), "each append, once")
    assert max(times) < 3, times
    assert workers[-1].moved > 0, "nobody ever met the restarted node"


class Last(Worker):
    """Stores until the node is gone: each request is answered with 2xx, or nothing of an answer came."""

    def __init__(self, stopped, c, name, keep):
        super().__init__(stopped)
        self.c, self.name, self.keep, self.conn = c, name, keep, None

    def once(self, n):
        try:
            if self.conn is None:
                self.conn = connect(self.c.port(1))
            a = request(0, "PUT", f"/kv/{self.name}", b"x" * (100 if n % 5 else 200_000), conn=self.conn)
        except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
            self.conn = None
            self.stopped.wait(0.01)
            return
        assert a.status in (200, 201), a
        if a.headers.get("Connection") == "close" or not self.keep:
            self.conn = None


def last_words(t):
    with t.claim("a node that is its own quorum answers what it has begun before it stops"), \
            Cluster(n=1, rf=1, base_port=BASE + 3) as c:
        stopped = threading.Event()
        workers = [Last(stopped, c, f"w{k}", k % 2) for k in range(12)]
        for w in workers:
            w.start()
        try:
            for _ in range(4):
                before = [w.n for w in workers]
                wait_until(lambda: all(w.n > n + 3 for w, n in zip(workers, before)), 30, "all work")
                begun = time.monotonic()
                eq(c.stop(1), [0])
                assert time.monotonic() - begun < 3, "it stops at once"
                c.start(1)
        finally:
            stopped.set()
            for w in workers:
                w.join()
        failed = [f for w in workers for f in w.failed]
        print(f"# {sum(w.n for w in workers)} requests", flush=True)
        eq(failed[:3], [], f"{len(failed)} failed operations")


with Claims() as t:
    with Cluster(base_port=BASE) as c, gateway(c):
        with t.claim("all nodes are restarted in turn under load, and no operation of a mount, a gateway or another node "
                     "fails"):
            rolling(c)
    last_words(t)
