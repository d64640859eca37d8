"""test_protocol_abuse.py - requests that lie about their length, stop in the middle, or take for ever."""
import contextlib
import os
import re
import resource
import select
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, connect, eq, raw, request, wait_until  # noqa: E402

HOST = b"Host: x\r\n"


def refused(c, data, silence_will_do=False):
    """Sends a malformed request with another behind it: 400 and a closed connection, and nothing else is done."""
    got = raw(c.port(1), data)
    if silence_will_do and got == b"":
        return
    assert got.startswith(b"HTTP/1.1 400 "), (data[:80], got[:200])
    eq(got.count(b"HTTP/1.1 "), got.count(b"HTTP/1.1 400 "), f"answers to {data[:80]!r}")


def framing(t, c):
    put = b"PUT /kv/victim HTTP/1.1\r\n" + HOST
    second = b"GET /kv/victim HTTP/1.1\r\n" + HOST + b"\r\n"
    with t.claim("two Content-Lengths are refused, also when they agree"):
        refused(c, put + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde" + second)
        refused(c, put + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + second)
        refused(c, put + b"Content-Length: 3, 3\r\n\r\nabc" + second)

    with t.claim("Content-Length beside Transfer-Encoding is refused, in either order"):
        refused(c, put + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second)
        refused(c, put + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + second)

    with t.claim("any Transfer-Encoding but chunked is refused"):
        for te in (b"gzip, chunked", b"chunked, gzip", b"gzip", b"identity", b"xchunked", b"chunked, chunked", b""):
            refused(c, put + b"Transfer-Encoding: " + te + b"\r\n\r\n0\r\n\r\n")
        refused(c, put + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")

    with t.claim("a Content-Length that is no plain number is refused"):
        for n in (b"-1", b"+3", b"0x3", b"3 3", b"", b"three", b"3.0"):
            refused(c, put + b"Content-Length: " + n + b"\r\n\r\nabc")
        got = raw(c.port(1), put + b"Content-Length: 99999999999999999999999\r\n\r\nabc")
        assert got[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 413 "), got[:100]

    with t.claim("spaces where none belong, folded lines, NULs and control characters in the header are refused"):
        refused(c, b"PUT /kv/vic tim HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", silence_will_do=True)
        refused(c, b"PUT /kv/victim\x01 HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc")
        refused(c, put + b"Content-Length : 3\r\n\r\nabc")
        refused(c, put + b"X: y\r\n folded\r\nContent-Length: 3\r\n\r\nabc")
        refused(c, put + b"X: a\0b\r\nContent-Length: 3\r\n\r\nabc")
        refused(c, put + b"Content-Length: 3\0\r\n\r\nabc")
        refused(c, put + b"Content-Length: 3\0\0\0\r\n\r\nabc")
        refused(c, put + b"Content-Length: 3\r\nX: a\0b\r\n\r\nabc")
        refused(c, b"PUT /kv/victim\0x HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", silence_will_do=True)
        refused(c, b"PUT /kv/victim HTTP/1.1\0\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", silence_will_do=True)

    with t.claim("HTTP/1.1 without Host, or with two, is refused; HTTP/1.0 needs none"):
        refused(c, b"GET /kv/victim HTTP/1.1\r\n\r\n")
        refused(c, b"GET /kv/victim HTTP/1.1\r\n" + HOST + HOST + b"\r\n")
        assert raw(c.port(1), b"GET /kv/victim HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")

    with t.claim("a chunked body with a bad size is refused"):
        for size in (b"zz", b"-3", b"3x", b"fffffffffffffffff"):
            got = raw(c.port(1), put + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\nabc\r\n0\r\n\r\n")
            assert got[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 413 "), (size, got[:100])

    with t.claim("long header lines up to many KiB are fine, endless ones are not"):
        get = b"GET /kv/victim HTTP/1.1\r\nConnection: close\r\n" + HOST
        got = raw(c.port(1), get + b"X: " + b"y" * 12000 + b"\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200 "), got[:100]
        got = raw(c.port(1), get + b"X: " + b"y" * 100000 + b"\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 431 "), got[:100]

    with t.claim("garbage is no request"):
        for data in (
            b"\0\0\0\0\r\n\r\n",
            b"GET\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
            b"GET /kv/victim HTTP/9.9\r\n\r\n",
        ):
            got = raw(c.port(1), data, half_close=True)
            assert not got.startswith(b"HTTP/1.1 200"), got[:100]

    with t.claim("none of these changed the value, and the node is well"):
        eq(c.http("GET", "/kv/victim").body, b"old value")
        eq(c.http("GET", "/health").status, 200)


def cut_bodies(t, c):
    put = b"PUT /kv/victim HTTP/1.1\r\n" + HOST
    with t.claim("a body cut short, or a chunked one without its end, leaves the old value"):
        for data in (put + b"Content-Length: 10\r\n\r\nshort", put + b"Content-Length: 10\r\n\r\n",
                     put + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
                     put + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
                     put + b"Content-Length: 3000000\r\n\r\n" + b"x" * 2000000):
            with socket.create_connection(("127.0.0.1", c.port(1))) as s:
                s.sendall(data)
        eq(c.http("GET", "/kv/victim").body, b"old value")

    with t.claim("a client that ends its side in the middle of a body is cut off at once"):
        eq(raw(c.port(1), put + b"Content-Length: 10\r\n\r\nshort", timeout=5, half_close=True), b"")

    with t.claim("a connection reset in the middle of a body leaves the old value"):
        s = socket.create_connection(("127.0.0.1", c.port(1)))
        s.sendall(put + b"Content-Length: 1000000\r\n\r\n" + b"x" * 500000)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()
        eq(c.http("GET", "/kv/victim").body, b"old value")

    with t.claim("the memory of cut bodies is given back, at the latest when their time is over"):
        wait_until(lambda: b"\nkvfs_memory_bytes 0\n" in c.http("GET", "/metrics").body, 25, "kvfs_memory_bytes is 0")


def pipelines(t, c):
    with t.claim("pipelined requests are answered in order"):
        one = b"GET /kv/victim HTTP/1.1\r\n" + HOST + b"\r\n"
        last = b"GET /kv/none HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
        got = raw(c.port(1), one * 3 + last)
        eq(re.findall(rb"HTTP/1.1 (\d+)", got), [b"200", b"200", b"200", b"404"])
        eq(got.count(b"old value"), 3)


def bodies_in_memory(t, c):
    """The room is for four of the largest size: of five announced bodies of 64 MiB one does not fit."""
    senders = []
    with t.claim("bodies above the memory meant for them are 503; health, status and the cluster go on"):
        for i in range(5):
            conn = connect(c.port(1))
            senders.append(conn)
            conn.putrequest("PUT", f"/kv/heavy{i}", skip_accept_encoding=True)
            conn.putheader("Content-Length", str(64 << 20))
            conn.endheaders()
            conn.send(b"z" * 1000)
        answered, _, _ = select.select([conn.sock for conn in senders], [], [], 5)
        eq(len(answered), 1)
        a = next(conn for conn in senders if conn.sock in answered).getresponse()
        eq(a.status, 503)
        eq(a.headers["Retry-After"], "1")
        eq(a.headers["Content-Type"], "application/problem+json")
        for path in ("/health", "/status", "/metrics"):
            eq(c.http("GET", path).status, 200, path)
        eq(c.http("PUT", "/kv/light", b"x", node=2).status, 201)
        eq([r["status"] for r in c.http("PUT", "/kv/light", b"y", node=2).json()["replications"]], ["ok", "ok"])
    for conn in senders:
        conn.close()


def refused_senders(t, c):
    """Their connections are read to the end after the answer, while both sides may close at any moment."""
    with t.claim("300 refused uploads, each ended by its sender in another way, do the node no harm"):
        head = b"PUT /kv/victim HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999\r\n\r\n"

        def some(n):
            for i in range(50):
                with socket.create_connection(("127.0.0.1", c.port(1)), timeout=15) as s:
                    with contextlib.suppress(OSError):
                        s.sendall(head + b"x" * (i * 3000))
                    if (i + n) % 3 == 0:
                        continue
                    with contextlib.suppress(OSError):
                        assert s.recv(12) == b"HTTP/1.1 413", "the answer"
                        if (i + n) % 3 == 1:
                            s.sendall(b"x" * 100000)

        threads = [threading.Thread(target=some, args=(n,)) for n in range(6)]
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        eq(c.procs[1].poll(), None)
        eq(c.http("GET", "/kv/victim").body, b"old value")


def out_of_descriptors(t, c):
    with t.claim("a node without free descriptors keeps its connections, and takes new ones when some are free"):
        pid, kept = c.pid(1), connect(c.port(1))
        eq(c.http("GET", "/health", conn=kept).status, 200)
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        fds = [int(fd) for fd in os.listdir(f"/proc/{pid}/fd")]
        limit = max(fds) + 10
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
        try:
            address = ("127.0.0.1", c.port(1))
            crowd = [socket.create_connection(address, timeout=5) for _ in range(limit - len(fds) + 40)]
            wait_until(lambda: "accept-failed" in c.log(1), 5, "the log tells of it")
            eq(c.http("GET", "/health", conn=kept).status, 200)
            late = connect(c.port(1))  # waits in the kernel's queue
            for s in crowd:
                s.close()
            eq(c.http("GET", "/health", conn=late).status, 200)
            late.close()
            eq(c.log(1).count("accept-failed"), 1)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
            kept.close()


def slow(t, c):
    """Total limits: 10 s for a header, 20 s and 256 KiB/s for a body and for an answer. All at once, to wait only once."""
    c.http("PUT", "/kv/unread", bytes(2 << 20))
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", c.port(1)))
    header = socket.create_connection(("127.0.0.1", c.port(1)))
    silent = socket.create_connection(("127.0.0.1", c.port(1)))
    body = socket.create_connection(("127.0.0.1", c.port(1)))
    header.sendall(b"GET /kv/victim HTTP/1.1\r\n" + HOST + b"X-Slow: ")
    body.sendall(b"PUT /kv/victim HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n")
    reader.sendall(b"GET /kv/unread HTTP/1.1\r\n" + HOST + b"\r\n")
    start = time.monotonic()
    held = lambda: b"\nkvfs_memory_bytes 0\n" not in c.http("GET", "/metrics").body  # noqa: E731
    wait_until(held, 5, "the answer waits in memory")
    ended = {}
    open_ones = {"header": header, "silent": silent, "body": body}
    while open_ones and time.monotonic() - start < 40:
        for name, s in list(open_ones.items()):
            s.settimeout(0.25)
            try:
                if name != "silent":
                    s.sendall(b"a")  # always a little life: an inactivity limit would wait for ever
                if s.recv(1000) == b"":
                    raise ConnectionResetError
            except TimeoutError:
                continue
            except OSError:
                ended[name] = time.monotonic() - start
                del open_ones[name]
                s.close()
    with t.claim("a header that drips in is cut after 10 s, a connection that says nothing too"):
        assert 8 < ended["header"] < 14, ended
        assert 8 < ended["silent"] < 14, ended
    with t.claim("a body that drips in is cut after 20 s, and the old value stays"):
        assert 18 < ended["body"] < 26, ended
        assert held(), "the answer that nobody reads has more time: it is longer"
    with t.claim("an answer of 2 MiB that nobody reads is given up after 28 s, and its memory given back"):
        wait_until(lambda: not held(), 15, "no memory is held")
        assert 26 < time.monotonic() - start < 36, time.monotonic() - start
        reader.close()
        eq(c.http("GET", "/kv/victim").body, b"old value")


def crowd(t, c):
    """More idle connections than are kept: the longest idle go, and everybody else is served."""
    idle = []
    with t.claim("1700 idle connections keep neither clients nor other nodes out"):
        for _ in range(1700):
            idle.append(socket.create_connection(("127.0.0.1", c.port(1)), timeout=5))
        eq(c.http("PUT", "/kv/crowd", b"x").status, 201)
        eq(request(c.port(2), "PUT", "/kv/crowd", b"y").status, 200)
        eq([r["status"] for r in c.http("PUT", "/kv/crowd", b"z", node=2).json()["replications"]], ["ok", "ok"])

        def shrunk():
            text = c.http("GET", "/metrics").body.decode()
            return float(text.split("\nkvfs_http_connections ")[1].split("\n")[0]) <= 1540

        wait_until(shrunk, 5, "no more than 1536 connections are kept")
    for s in idle:
        s.close()


with Claims() as t, Cluster(base_port=18220, config={"max_value_size": 64 << 20}) as c:
    c.http("PUT", "/kv/victim", b"old value")
    framing(t, c)
    cut_bodies(t, c)
    pipelines(t, c)
    bodies_in_memory(t, c)
    refused_senders(t, c)
    out_of_descriptors(t, c)
    crowd(t, c)
    slow(t, c)
    with t.claim("after all that every node still ends with 0"):
        eq(c.stop(), [0, 0, 0])
