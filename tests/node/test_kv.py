"""test_kv.py - values, conditions, ranges and errors of /kv over HTTP."""
import os
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, connect, eq, request  # noqa: E402


def problem(answer, status):
    eq(answer.status, status, "status")
    eq(answer.headers["Content-Type"], "application/problem+json")
    body = answer.json()
    eq(body["status"], status)
    assert body["type"] == "about:blank" and body["title"] and body["detail"], body
    return body


def in_threads(n, work):
    """Runs work(0) .. work(n - 1) at once; the first exception is ours."""
    failures = []

    def guarded(i):
        try:
            work(i)
        except Exception as e:  # to be raised where somebody sees it
            failures.append(e)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    if failures:
        raise failures[0]


def values(t, c):
    with t.claim("a PUT of a new key answers 201 with version, primary and one row per other replica"):
        a = c.http("PUT", "/kv/new", b"one")
        eq(a.status, 201)
        eq(a.headers["Content-Type"], "application/json")
        body = a.json()
        eq(sorted(body), ["key", "primary_node", "replications", "version"])
        eq(body["key"], "new")
        eq(a.headers["ETag"], f'"{body["version"]}"')
        eq(sorted([body["primary_node"]] + [r["node"] for r in body["replications"]]), ["node-1", "node-2", "node-3"])
        eq([r["status"] for r in body["replications"]], ["ok", "ok"])

    with t.claim("a PUT of a key that is there answers 200 and another version"):
        b = c.http("PUT", "/kv/new", b"two", node=2)
        eq(b.status, 200)
        assert b.json()["version"] > body["version"], "versions grow"

    with t.claim("every node answers a GET with the bytes, their length, type, version and date"):
        for node in c.nodes():
            a = c.http("GET", "/kv/new", node=node)
            eq((a.status, a.body), (200, b"two"))
            eq(a.headers["Content-Type"], "application/octet-stream")
            eq(a.headers["Content-Length"], "3")
            eq(a.headers["ETag"], b.headers["ETag"])
            eq(a.headers["Accept-Ranges"], "bytes")
            assert a.headers["Last-Modified"].endswith(" GMT"), a.headers["Last-Modified"]

    with t.claim("HEAD tells the same without the bytes"):
        h, g = c.http("HEAD", "/kv/new"), c.http("GET", "/kv/new")
        eq((h.status, h.body), (200, b""))
        for name in ("Content-Length", "ETag", "Last-Modified", "Content-Type", "Accept-Ranges"):
            eq(h.headers[name], g.headers[name], name)

    with t.claim("DELETE answers 204, then 404, and the key stays gone on every node"):
        eq(c.http("DELETE", "/kv/new", node=3).status, 204)
        problem(c.http("DELETE", "/kv/new", node=1), 404)
        for node in c.nodes():
            problem(c.http("GET", "/kv/new", node=node), 404)
            eq(c.http("HEAD", "/kv/new", node=node).status, 404)

    with t.claim("a key put again after a DELETE is new: 201"):
        eq(c.http("PUT", "/kv/new", b"three").status, 201)

    with t.claim("a media type is kept with its value, except that of a form, which is curl's guess"):
        c.http("PUT", "/kv/typed", b"{}", {"Content-Type": "application/json; charset=utf-8"})
        eq(c.http("GET", "/kv/typed").headers["Content-Type"], "application/json; charset=utf-8")
        c.http("POST", "/kv/typed?append", b" ", {"Content-Type": "text/html"})
        eq(c.http("GET", "/kv/typed").headers["Content-Type"], "application/json; charset=utf-8")
        c.http("PUT", "/kv/typed", b"{}", {"Content-Type": "application/x-www-form-urlencoded"})
        eq(c.http("GET", "/kv/typed").headers["Content-Type"], "application/octet-stream")

    with t.claim("a media type that could not be sent back is refused"):
        problem(c.http("PUT", "/kv/typed", b"x", {"Content-Type": "text/plain\x01"}), 400)
        eq(c.http("GET", "/kv/typed").body, b"{}")

    with t.claim("several requests share a connection, errors included"):
        conn = connect(c.port(1))
        for i in range(5):
            eq(c.http("PUT", f"/kv/keep{i}", b"v" * i, conn=conn).status, 201)
            eq(c.http("GET", f"/kv/keep{i}", conn=conn).body, b"v" * i)
            eq(c.http("GET", "/kv/none", conn=conn).status, 404)
            eq(c.http("PUT", "/kv/keep%", b"body", conn=conn).status, 400)
        conn.close()

    with t.claim("a chunked body is stored whole"):
        eq(c.http("PUT", "/kv/chunked", [b"abc", b"d" * 100000, b"e"], {"_chunked": True}).status, 201)
        eq(c.http("GET", "/kv/chunked").body, b"abc" + b"d" * 100000 + b"e")


def conditions(t, c):
    with t.claim("If-None-Match: * creates once: the second gets 412 with the present version and changes nothing"):
        eq(c.http("PUT", "/kv/once", b"a", {"If-None-Match": "*"}).status, 201)
        a = c.http("PUT", "/kv/once", b"b", {"If-None-Match": "*"}, node=2)
        problem(a, 412)
        now = c.http("GET", "/kv/once")
        eq(now.body, b"a")
        eq(a.headers["ETag"], now.headers["ETag"])

    with t.claim("If-Match replaces exactly that version, alone or in a list; a weak tag never matches"):
        tag = c.http("GET", "/kv/once").headers["ETag"]
        problem(c.http("PUT", "/kv/once", b"x", {"If-Match": f"W/{tag}"}), 412)
        problem(c.http("PUT", "/kv/once", b"x", {"If-Match": '"else"'}), 412)
        eq(c.http("PUT", "/kv/once", b"b", {"If-Match": f'"else", {tag}'}).status, 200)
        problem(c.http("PUT", "/kv/once", b"c", {"If-Match": tag}, node=3), 412)
        eq(c.http("GET", "/kv/once").body, b"b")

    with t.claim("If-Match: * wants a key that is there"):
        eq(c.http("PUT", "/kv/once", b"b2", {"If-Match": "*"}).status, 200)
        problem(c.http("PUT", "/kv/absent", b"b2", {"If-Match": "*"}), 412)
        problem(c.http("GET", "/kv/absent"), 404)

    with t.claim("DELETE takes If-Match"):
        tag = c.http("GET", "/kv/once").headers["ETag"]
        problem(c.http("DELETE", "/kv/once", headers={"If-Match": '"else"'}), 412)
        eq(c.http("DELETE", "/kv/once", headers={"If-Match": tag}).status, 204)
        problem(c.http("DELETE", "/kv/once", headers={"If-Match": tag}), 412)

    with t.claim("a condition that is no ETag list is 400, not ignored"):
        problem(c.http("PUT", "/kv/once", b"z", {"If-Match": "unquoted"}), 400)
        problem(c.http("GET", "/kv/once"), 404)

    with t.claim("of 8 clients that create one key at once, one wins; 5 rounds"):
        for i in range(5):
            statuses = []

            def put(n, i=i, statuses=statuses):
                a = c.http("PUT", f"/kv/race{i}", b"%d" % n, {"If-None-Match": "*"}, node=n % 3 + 1)
                statuses.append(a.status)

            in_threads(8, put)
            eq(sorted(statuses), [201] + [412] * 7)

    with t.claim("GET answers 304 for the present version, 200 for another; dates count only without tags"):
        c.http("PUT", "/kv/cached", b"data")
        g = c.http("GET", "/kv/cached")
        tag, date = g.headers["ETag"], g.headers["Last-Modified"]
        for value in (tag, f'"x", {tag}', f"W/{tag}", "*"):
            a = c.http("GET", "/kv/cached", headers={"If-None-Match": value})
            eq((a.status, a.body, a.headers["ETag"]), (304, b"", tag), value)
        eq(c.http("GET", "/kv/cached", headers={"If-None-Match": '"x"', "If-Modified-Since": date}).status, 200)
        eq(c.http("GET", "/kv/cached", headers={"If-Modified-Since": date}).status, 304)
        eq(c.http("GET", "/kv/cached", headers={"If-Modified-Since": "Sun, 06 Nov 1994 08:49:37 GMT"}).status, 200)
        eq(c.http("GET", "/kv/cached", headers={"If-Modified-Since": "yesterday"}).status, 200)
        problem(c.http("GET", "/kv/cached", headers={"If-Match": '"x"'}), 412)


def ranges(t, c):
    value = bytes(range(256)) * 12000  # 3,072,000 bytes: over a chunk, and not inline
    c.http("PUT", "/kv/long", value)
    size = len(value)
    with t.claim("single ranges answer 206 with exactly those bytes"):
        for text, first, end in [
            ("0-0", 0, 1),
            ("5-9", 5, 10),
            ("1048570-1048580", 1048570, 1048581),
            ("1-2500000", 1, 2500001),
            ("0-", 0, size),
            (f"{size - 1}-", size - 1, size),
            ("100-99999999999999999999", 100, size),
            ("-3", size - 3, size),
            (f"-{size + 5}", 0, size),
        ]:
            a = c.http("GET", "/kv/long", headers={"Range": f"bytes={text}"}, node=2)
            eq(a.status, 206, text)
            eq(a.headers["Content-Range"], f"bytes {first}-{end - 1}/{size}")
            assert a.body == value[first:end], text

    with t.claim("a range beyond the end is 416 with the size"):
        for text in (f"{size}-", f"{size + 10}-{size + 20}", "-0"):
            a = c.http("GET", "/kv/long", headers={"Range": f"bytes={text}"})
            problem(a, 416)
            eq(a.headers["Content-Range"], f"bytes */{size}")

    with t.claim("what is no single byte range is ignored: the whole value, 200"):
        for text in ("bytes=0-1,3-4", "bytes=5-4", "bytes=x-", "lines=1-2", "bytes=-", "bytes=1-2 junk"):
            a = c.http("GET", "/kv/long", headers={"Range": text})
            eq((a.status, len(a.body)), (200, size), text)

    with t.claim("If-Range gives the part of that version only, else the whole"):
        tag = c.http("HEAD", "/kv/long").headers["ETag"]
        eq(c.http("GET", "/kv/long", headers={"Range": "bytes=0-3", "If-Range": tag}).status, 206)
        for other in ('"x"', f"W/{tag}", "Sun, 06 Nov 1994 08:49:37 GMT"):
            a = c.http("GET", "/kv/long", headers={"Range": "bytes=0-3", "If-Range": other})
            eq((a.status, len(a.body)), (200, size), other)

    with t.claim("the whole long value comes from every node"):
        for node in c.nodes():
            assert c.http("GET", "/kv/long", node=node).body == value, f"node-{node}"

    with t.claim("an empty value has no range"):
        c.http("PUT", "/kv/empty", b"")
        eq(c.http("GET", "/kv/empty", headers={"Range": "bytes=0-0"}).status, 416)


def appends(t, c):
    with t.claim("POST ?append creates, then adds to the end; PUT with append and POST without are 400"):
        eq(c.http("POST", "/kv/log?append", b"a\n").status, 201)
        eq(c.http("POST", "/kv/log?append", b"b\n", node=2).status, 200)
        eq(c.http("GET", "/kv/log").body, b"a\nb\n")
        problem(c.http("POST", "/kv/log", b"c\n"), 400)
        problem(c.http("PUT", "/kv/log?append", b"c\n"), 400)
        eq(c.http("GET", "/kv/log").body, b"a\nb\n")

    with t.claim("appends of 6 clients through 3 nodes all arrive, once and whole"):
        def add(n):
            conn = connect(c.port(n % 3 + 1))
            for i in range(10):
                a = request(c.port(1), "POST", "/kv/shared?append", b"%d-%d\n" % (n, i), conn=conn)
                assert a.status in (200, 201), a
            conn.close()

        in_threads(6, add)
        lines = c.http("GET", "/kv/shared").body.split()
        eq(sorted(lines), sorted(b"%d-%d" % (n, i) for n in range(6) for i in range(10)))

    with t.claim("50 clients that write one key at once through 3 nodes take turns: none is left in the dark"):
        for i in range(3):
            statuses = []

            def put(n, i=i, statuses=statuses):
                statuses.append(c.http("PUT", f"/kv/hot{i}", b"%d" % n, node=n % 3 + 1).status)

            in_threads(50, put)
            eq(sorted(statuses), [200] * 49 + [201])

    with t.claim("1000 appends of 8 clients through 3 nodes: what is acknowledged is there, nothing twice"):
        done, unknown = [], []

        def append(n):
            conn = connect(c.port(n % 3 + 1))
            for i in range(125):
                line = b"%d-%d" % (n, i)
                a = request(0, "POST", "/kv/lines?append", line + b"\n", conn=conn)
                if a.status in (200, 201):
                    done.append(line)
                else:
                    unknown.append((line, a.body))
            conn.close()

        in_threads(8, append)
        lines = c.http("GET", "/kv/lines").body.split()
        eq(len(lines), len(set(lines)))
        eq(set(done) - set(lines), set())
        assert len(unknown) < 5, unknown  # whoever stands still while 32 others write cannot know

    with t.claim("an append that would pass max_value_size is 413 and changes nothing"):
        most = c.config["max_value_size"]
        c.http("PUT", "/kv/full", b"f" * most)
        problem(c.http("POST", "/kv/full?append", b"x"), 413)
        eq(len(c.http("GET", "/kv/full").body), most)


def crowds(t, c):
    with t.claim("32 clients at once through three nodes that coordinate for each other: all are answered"):

        def client(i):
            conn = connect(c.port(i % 3 + 1), timeout=30)
            for k in range(10):
                value = b"%d" % i * (1 + k * 1000)
                a = request(0, "PUT", f"/kv/crowd{i}", value, conn=conn)
                assert a.status == (201 if k == 0 else 200), a
                eq(request(0, "GET", f"/kv/crowd{i}", conn=conn).body, value)
            conn.close()

        in_threads(32, client)

    with t.claim("a long value that is replaced while it is read comes whole, of one version"):
        size = 3 << 20
        c.http("PUT", "/kv/moving", bytes([0]) * size)

        def client2(i):
            for k in range(8):
                if i == 0:
                    eq(c.http("PUT", "/kv/moving", bytes([k]) * size, node=k % 3 + 1).status, 200)
                else:
                    a = c.http("GET", "/kv/moving", node=(i + k) % 3 + 1)
                    eq((a.status, len(a.body), a.body.count(a.body[0])), (200, size, size))

        in_threads(4, client2)


def errors(t, c):
    with t.claim("another method is 405 with Allow"):
        for path, allow in [
            ("/kv/x", "GET, HEAD, PUT, DELETE, POST"),
            ("/kv", "GET, HEAD"),
            ("/health", "GET, HEAD"),
            ("/replicas/x", "GET, HEAD"),
            ("/replica", "POST"),
            ("/status", "GET, HEAD"),
        ]:
            a = c.http("PATCH", path, b"")
            problem(a, 405)
            eq(a.headers["Allow"], allow, path)

    with t.claim("an unknown path and an unknown query parameter are problems that say so"):
        problem(c.http("GET", "/nothing/here"), 404)
        problem(c.http("GET", "/"), 404)
        assert "colour" in problem(c.http("GET", "/kv?colour=red"), 400)["detail"]
        problem(c.http("GET", "/kv/x?y=1"), 400)

    with t.claim("a PUT without a length is 411"):
        conn = connect(c.port(1))
        conn.putrequest("PUT", "/kv/nolength", skip_accept_encoding=True)
        conn.endheaders()
        eq(conn.getresponse().status, 411)
        conn.close()

    with t.claim("Content-Encoding and Content-Range of a PUT are refused: the bytes would not be the value"):
        problem(c.http("PUT", "/kv/enc", b"x", {"Content-Encoding": "gzip"}), 415)
        problem(c.http("PUT", "/kv/enc", b"x", {"Content-Range": "bytes 0-0/5"}), 400)
        problem(c.http("GET", "/kv/enc"), 404)


def listings(t, c):
    names = ["ls/a", "ls/b/1", "ls/b/2", "ls/c", "ls/d/e/f"]
    for n in names:
        c.http("PUT", f"/kv/{n}", n.encode())
    with t.claim("a listing holds keys with size, version and mtime in byte order, from any node"):
        for node in c.nodes():
            page = c.http("GET", "/kv?prefix=ls/", node=node).json()
            eq([k["key"] for k in page["keys"]], names)
            eq((page["prefixes"], page["next"]), ([], None))
        first = page["keys"][0]
        eq(first["size"], 4)
        eq(f'"{first["version"]}"', c.http("HEAD", "/kv/ls/a").headers["ETag"])
        eq((first["mtime"][4], first["mtime"][-1]), ("-", "Z"))

    with t.claim("a delimiter rolls up, and pages join without gap or repeat"):
        eq(c.http("GET", "/kv?prefix=ls/&delimiter=/").json()["prefixes"], ["ls/b/", "ls/d/"])
        keys, prefixes, after = [], [], ""
        for _ in range(10):
            page = c.http("GET", f"/kv?prefix=ls/&delimiter=/&limit=1&start_after={after}").json()
            keys += [k["key"] for k in page["keys"]]
            prefixes += page["prefixes"]
            if page["next"] is None:
                break
            after = page["next"]
        eq((keys, prefixes), (["ls/a", "ls/c"], ["ls/b/", "ls/d/"]))

    with t.claim("deleted keys are not listed, and a directory of them is gone"):
        c.http("DELETE", "/kv/ls/d/e/f")
        eq(c.http("GET", "/kv?prefix=ls/&delimiter=/", node=2).json()["prefixes"], ["ls/b/"])

    with t.claim("a page of long keys ends early, says so, and is followed by the rest"):
        names = [f"long/{i:04d}".ljust(4096, "k") for i in range(1100)]

        def put_some(n):
            conn = connect(c.port(n % 3 + 1))
            for name in names[n::6]:
                eq(c.http("PUT", f"/kv/{name}", b"", conn=conn).status, 201)
            conn.close()

        in_threads(6, put_some)
        first = c.http("GET", "/kv?prefix=long/&limit=2000").json()
        assert 0 < len(first["keys"]) < 1100 and first["next"] == first["keys"][-1]["key"], first["next"]
        rest = c.http("GET", f"/kv?prefix=long/&limit=2000&start_after={first['next']}").json()
        eq([k["key"] for k in first["keys"] + rest["keys"]], names)
        eq(rest["next"], None)

    with t.claim("limits out of 1..10000, other delimiters and broken base64 are 400"):
        for q in (
            "limit=0", "limit=10001", "limit=x", "limit=", "delimiter=x",
            "prefix_base64=*", "prefix=a&prefix=b", "prefix=%zz",
        ):
            problem(c.http("GET", f"/kv?{q}"), 400)


def main():
    with Claims() as t, Cluster(base_port=18200, config={"max_value_size": 4 << 20}) as c:
        values(t, c)
        conditions(t, c)
        ranges(t, c)
        appends(t, c)
        crowds(t, c)
        errors(t, c)
        listings(t, c)
        with t.claim("/status names every node and the ring, /metrics is Prometheus text"):
            s = c.http("GET", "/status").json()
            eq([(n["id"], n["alive"]) for n in s["nodes"]], [(f"node-{i}", True) for i in (1, 2, 3)])
            eq((s["ring"]["total_vnodes"], s["ring"]["hash"], s["ring"]["replication_factor"]), (300, "fnv1a", 3))
            m = c.http("GET", "/metrics")
            assert m.headers["Content-Type"].startswith("text/plain; version=0.0.4"), m.headers["Content-Type"]
            assert b'kvfs_http_requests_total{route="kv",method="PUT",status="201"}' in m.body
        with t.claim("a node ends with 0 on SIGTERM"):
            eq(c.stop(), [0, 0, 0])


main()
