"""test_watch.py - GET /watch: the changes that a node stores, as they come."""
import base64
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import KVNODE, Claims, Cluster, connect, eq, raw, request, wait_until  # noqa: E402

BASE = 21100
LIMIT_S = 20
MANY = 300
WATCHERS_MAX = 512


class Watch:
    """One watcher. Lines come as dicts; the greeting is apart."""

    def __init__(self, port, query="", receive_buffer=0):
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(("127.0.0.1", port))
        self.sock.sendall(f"GET /watch{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self.answer = http.client.HTTPResponse(self.sock)
        self.answer.begin()
        eq(self.answer.status, 200)
        self.greeting = self.line()
        self.position = self.greeting["position"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.answer.close()
        self.sock.close()

    def line(self):
        """The next line, None at the end."""
        text = self.answer.readline()
        if text == b"":
            return None
        assert text.endswith(b"\n"), f"cut: {text}"
        got = json.loads(text)
        self.position = got["position"]
        return got

    def changes(self, n=None, until=None):
        """The next n changes, or up to the one that until() says is the last; heartbeats are left out."""
        got = []
        while n is None or len(got) < n:
            line = self.line()
            assert line is not None, f"ended after {len(got)}"
            assert "gap" not in line, line
            if "key" in line or "key_base64" in line:
                got.append(line)
                if until is not None and until(line):
                    break
        return got


def version(answer):
    return json.loads(answer.body)["version"]


def number(position):
    return int(position.split("-")[1], 16)


def metric(c, name, node=1):
    text = c.http("GET", "/metrics", node=node).body.decode()
    return float(text.split(f"\n{name} ")[1].split("\n")[0])


# --- one cluster ----------------------------------------------------------------------------------


def order(t, c):
    with t.claim("every node tells each change of a key once, oldest first; what was acknowledged is told by a majority"):
        watches = [Watch(c.port(i)) for i in c.nodes()]
        acked = []

        def write(i):
            conn = connect(c.port(i))
            for k in range(40):
                a = c.http("PUT", f"/kv/order/{k % 4}", b"%d" % k, node=i, conn=conn)
                eq(a.status in (200, 201), True, repr(a))
                acked.append((f"order/{k % 4}", version(a)))  # None: another write had replaced it already
            conn.close()

        threads = [threading.Thread(target=write, args=(i,)) for i in c.nodes()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eq(len(acked), 120)
        last = version(c.http("PUT", "/kv/order/last", b"x"))
        told = {}
        for i, w in zip(c.nodes(), watches):
            numbers = []
            # A node may get the last one later than its two peers, and so may have to be brought up to it.
            for line in w.changes(until=lambda line: line["version"] == last):
                numbers.append(number(line["position"]))
                told.setdefault((i, line["key"]), []).append(line["version"])
                eq(line["kind"], "put")
            eq(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
            w.close()
        for versions in told.values():
            eq(versions, sorted(set(versions)))
        for key, v in (a for a in acked if a[1] is not None):
            n = sum(v in told.get((i, key), ()) for i in c.nodes())
            eq(n >= 2, True, f"{key} {v} was told by {n}")


def kinds_and_keys(t, c):
    with t.claim("a delete is told as one"):
        with Watch(c.port(1), "?prefix=kinds/") as w:
            v = version(c.http("PUT", "/kv/kinds/a", b"x"))
            eq(c.http("DELETE", "/kv/kinds/a").status, 204)
            put, gone = w.changes(2)
            eq((put["key"], put["kind"], put["version"]), ("kinds/a", "put", v))
            eq((gone["key"], gone["kind"], gone["version"] > v), ("kinds/a", "delete", True))

    with t.claim("a key that is not UTF-8 comes in base64, and so goes a prefix"):
        prefix = base64.b64encode(b"\xff/").decode().replace("/", "%2F")
        with Watch(c.port(2), f"?prefix_base64={prefix}") as w:
            c.http("PUT", "/kv/utf8", b"x")
            c.http("PUT", "/kv/%FF/%01%0a", b"x")
            (line,) = w.changes(1)
            eq("key" in line, False)
            eq(base64.b64decode(line["key_base64"]), b"\xff/\x01\n")

    with t.claim("the longest of keys comes whole, whatever its bytes"):
        for i, byte in enumerate(("%01", "%C3%BC", "%FE")):
            key = "long" + byte * ((4096 - 4) // byte.count("%"))
            with Watch(c.port(1), "?prefix=long") as w:
                eq(c.http("PUT", f"/kv/{key}", b"x").status in (200, 201), True)
                (line,) = w.changes(1)
                got = line["key"].encode() if "key" in line else base64.b64decode(line["key_base64"])
                eq(len(got), 4096, f"key {i}")

    with t.claim("a prefix lets only its keys through, and heartbeats advance the position all the same"):
        with Watch(c.port(1), "?prefix=mine/") as w:
            before = number(w.position)
            for i in range(5):
                c.http("PUT", f"/kv/others/{i}", b"x")
            while number(w.position) < before + 5:
                line = w.line()
                eq("key" in line, False)
            c.http("PUT", "/kv/mine/1", b"x")
            eq(w.changes(1)[0]["key"], "mine/1")

    with t.claim("silence is broken by heartbeats"):
        with Watch(c.port(3)) as w:
            start = time.monotonic()
            for _ in range(12):
                eq(set(w.line()), {"position"})
            took = time.monotonic() - start
            eq(1.5 < took < LIMIT_S, True, f"12 took {took:.2f} s")
            print(f"# 12 heartbeats in {took:.2f} s")


def positions(t, c):
    with t.claim("after= goes on behind the position: nothing is missed, nothing comes twice"):
        with Watch(c.port(1), "?prefix=resume/") as w:
            for i in range(4):
                c.http("PUT", f"/kv/resume/{i}", b"x")
            lines = w.changes(4)
        for i in range(4, 8):
            c.http("PUT", f"/kv/resume/{i}", b"x")
        for k in (0, 2, 3):
            with Watch(c.port(1), f"?prefix=resume/&after={lines[k]['position']}") as w:
                eq(w.greeting["position"], lines[k]["position"])
                eq(number(w.greeting["latest"]) >= number(w.greeting["position"]) + 4, True)
                eq([line["key"] for line in w.changes(7 - k)], [f"resume/{i}" for i in range(k + 1, 8)])

    with t.claim("a position of another life, or one not reached yet, is told as a gap, and the stream goes on"):
        with Watch(c.port(1)) as w:
            here = w.position
        life = here.split("-")[0]
        for bad in (f"{'0' * 16}-{here.split('-')[1]}", f"{life}-{'f' * 16}"):
            with Watch(c.port(1), f"?prefix=gap&after={bad}") as w:
                eq("gap" in w.line(), True)
                v = version(c.http("PUT", "/kv/gap", b"x"))
                eq(w.changes(1)[0]["version"], v)

    with t.claim("what is no position, and what is no such request, is refused"):
        for query in ("?after=", "?after=7", "?after=x", "?other=1", "?prefix=%zz", "?prefix=a&prefix_base64=YQ=="):
            eq(c.http("GET", f"/watch{query}").status, 400, query)
        a = c.http("POST", "/watch", b"")
        eq((a.status, a.headers["Allow"]), (405, "GET, HEAD"))
        a = c.http("HEAD", "/watch")
        eq((a.status, a.headers["Content-Type"]), (200, "application/x-ndjson"))

    with t.claim("HTTP/1.0 gets the lines without chunks"):
        with socket.create_connection(("127.0.0.1", c.port(1)), timeout=LIMIT_S) as s:
            s.sendall(b"GET /watch HTTP/1.0\r\n\r\n")
            got = b""
            while got.count(b'{"position"') < 3:
                part = s.recv(4096)
                assert part, got
                got += part
            eq(b"chunked" in got.lower(), False)


def latency(t, c):
    with t.claim("a change is told at once"):
        took = []
        with Watch(c.port(2), "?prefix=fast/") as w:
            conn = connect(c.port(1))
            for i in range(200):
                a = c.http("PUT", f"/kv/fast/{i}", b"x", conn=conn)
                answered = time.monotonic()
                eq(a.status, 201)
                w.changes(1)
                took.append(time.monotonic() - answered)
            conn.close()
        took.sort()
        print(f"# from the answer at one node to the line of another: "
              f"p50 {took[100] * 1e3:.2f} ms, p99 {took[197] * 1e3:.2f} ms")
        eq(took[100] < 0.5, True, f"{took[100]}")


def crowd(t, c):
    with t.claim(f"{MANY} watchers are all told, and gone when they have left"), contextlib.ExitStack() as stack:
        watches = [stack.enter_context(Watch(c.port(1), "?prefix=crowd/")) for _ in range(MANY)]
        eq(metric(c, "kvfs_watchers"), MANY)
        conn = connect(c.port(2))
        for i in range(20):
            eq(c.http("PUT", f"/kv/crowd/{i}", b"x", node=2, conn=conn).status, 201)
        conn.close()
        for w in watches:
            eq([line["key"] for line in w.changes(20)], [f"crowd/{i}" for i in range(20)])
        stack.close()
        wait_until(lambda: metric(c, "kvfs_watchers") == 0, LIMIT_S, "the node notices that they left")

    with t.claim("more than a quarter of the connections cannot watch, and the others go on"), contextlib.ExitStack() as stack:
        for _ in range(WATCHERS_MAX):
            stack.enter_context(Watch(c.port(1)))
        a = request(c.port(1), "GET", "/watch")
        eq((a.status, "Retry-After" in a.headers), (503, True))
        eq(c.http("PUT", "/kv/crowd", b"x").status, 201)
        stack.close()
        wait_until(lambda: metric(c, "kvfs_watchers") == 0, LIMIT_S, "they have left")


def away(t, c):
    with t.claim("a node that was frozen tells what it is brought up to, to those who watched before"):
        with Watch(c.port(3), "?prefix=away/") as w:
            c.sigstop(3)
            v = version(c.http("PUT", "/kv/away/1", b"x"))
            c.sigcont(3)
            end = time.monotonic() + 3 * LIMIT_S
            while "key" not in (line := w.line()):
                eq(time.monotonic() < end, True, "nothing came")
                c.http("GET", "/kv/away/1")  # a read looks after those who are behind
            eq((line["key"], line["version"] >= v), ("away/1", True))


def ends(t, c):
    with t.claim("SIGTERM ends the answers of those who watch, well, and at once; one that does not read does not hold it up"):
        watches = [Watch(c.port(1)) for _ in range(50)]
        stuck = Watch(c.port(1), receive_buffer=2048)
        start = time.monotonic()
        eq(c.stop(1), [0])
        took = time.monotonic() - start
        for w in watches:
            while w.line() is not None:
                pass
            eq(w.answer.isclosed(), True)
            w.close()
        stuck.close()
        print(f"# stopped in {took:.2f} s")
        eq(took < 4, True, f"{took:.2f} s")

    with t.claim("after a restart the old position is of another life"):
        old = watches[0].position
        c.start(1)
        with Watch(c.port(1), f"?prefix=restarted&after={old}") as w:
            eq("gap" in w.line(), True)
            v = version(c.http("PUT", "/kv/restarted", b"x", node=2))
            eq(w.changes(1)[0]["version"] >= v, True)  # above: where it took no part, and was brought up to it

    with t.claim("a gateway says that it stores nothing"):
        p = subprocess.Popen([KVNODE, "--config", str(c.config_path), "--gateway", f"127.0.0.1:{BASE + 9}"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            def answers():
                with contextlib.suppress(OSError):
                    return request(BASE + 9, "GET", "/watch")
                return None

            a = wait_until(answers, LIMIT_S, "the gateway answers")
            eq((a.status, b"a gateway stores nothing" in a.body), (404, True))
        finally:
            p.send_signal(signal.SIGTERM)
            p.wait()


# --- one node, many long keys ---------------------------------------------------------------------


def slow(t, c):
    with t.claim("one that does not fetch is told a gap, costs no memory, and goes on with what comes then"):
        with Watch(c.port(1), receive_buffer=4096) as w:
            conn = connect(c.port(1))
            rest = "k" * 4000
            for i in range(2500):
                eq(c.http("PUT", f"/kv/{i}/{rest}", b"x", conn=conn).status, 201)
            conn.close()
            seen = 0
            while "gap" not in (line := w.line()):
                if "key" in line:
                    eq(line["key"].split("/")[0], str(seen))
                    seen += 1
            eq(seen < 2490, True, f"{seen}")
            print(f"# the gap came behind {seen} of 2500 changes")
            eq(number(line["position"]) <= 2500, True)
            v = version(c.http("PUT", "/kv/last", b"x"))
            eq(w.changes(until=lambda line: line["version"] == v)[-1]["key"], "last")


# --- one node, on a machine that was suspended -----------------------------------------------------


SUSPENDED = ["unshare", "--time", "--boottime", "3600"]


class Resumed(Cluster):
    def command(self, i, extra=()):
        return [*SUSPENDED, *super().command(i, extra)]


def resumed(t):
    if subprocess.run([*SUSPENDED, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("# here no process may have a time of its own")
        return
    with t.claim("after an hour of suspend heartbeats come as before"), \
            Resumed(n=1, rf=1, base_port=BASE + 40, store="memory") as c, Watch(c.port(1)) as w:
        for _ in range(4):
            eq(set(w.line()), {"position"})


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    with Claims() as t:
        with Cluster(base_port=BASE) as c:
            for part in (order, kinds_and_keys, positions, latency, crowd, away, ends):
                part(t, c)
        with Cluster(n=1, rf=1, base_port=BASE + 20, store="memory") as c:
            slow(t, c)
        resumed(t)


main()
