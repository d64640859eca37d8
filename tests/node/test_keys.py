"""test_keys.py - the hard keys and sizes, through HTTP: one decode, nothing folded, nothing cut."""
import base64
import os
import sys
import urllib.parse

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, connect, eq, wait_until  # noqa: E402

MAX = 64 << 20


def distinct_keys(t, c):
    # path after /kv/ -> the key's bytes
    keys = {
        "a": b"a", "a/b": b"a/b", "a//b": b"a//b", "/a": b"/a", "a/": b"a/", "//": b"//", "/": b"/",
        ".": b".", "..": b"..", "a/../b": b"a/../b", "a/./b": b"a/./b", "%2e%2e/x": b"../x",
        "a%20b": b"a b", "a+b": b"a+b", "a%2Bc": b"a+c", "100%25": b"100%", "%2525": b"%25",
        "%ff%fe": b"\xff\xfe", "%E4%BD%A0": "你".encode(), "q%3Fx=1%26y%23z": b"q?x=1&y#z", "%0a%0d%09": b"\n\r\t",
        "~tilde;semi,comma:colon@at": b"~tilde;semi,comma:colon@at", "%22quoted%5C%22": b'"quoted\\"',
    }
    with t.claim("every odd key is a key of its own, written through one node and read through the others"):
        for i, path in enumerate(keys):
            eq(c.http("PUT", f"/kv/{path}", b"value of " + path.encode(), node=i % 3 + 1).status, 201, path)
        for i, path in enumerate(keys):
            a = c.http("GET", f"/kv/{path}", node=(i + 1) % 3 + 1)
            eq((a.status, a.body), (200, b"value of " + path.encode()), path)

    with t.claim("the report names the key as text, or in base64 where it is not UTF-8"):
        eq(c.http("PUT", "/kv/%E4%BD%A0", b"x").json()["key"], "你")
        eq(c.http("PUT", "/kv/%ff%fe", b"x").json()["key_base64"], base64.b64encode(b"\xff\xfe").decode())

    with t.claim("escaping more than needed names the same key"):
        for path, raw in keys.items():
            full = "".join(f"%{b:02x}" for b in raw)
            eq(c.http("HEAD", f"/kv/{full}").status, 200, path)

    with t.claim("the listing holds exactly these keys in byte order, two readings of its pages alike"):
        for limit in (1000, 4):
            got, query = [], ""
            for _ in range(30):
                page = c.http("GET", f"/kv?limit={limit}{query}", node=2).json()
                got += [k["key"].encode() if "key" in k else base64.b64decode(k["key_base64"]) for k in page["keys"]]
                if "next_base64" in page:
                    query = "&start_after_base64=" + page["next_base64"]
                elif page["next"] is not None:
                    query = "&start_after=" + urllib.parse.quote(page["next"], safe="")
                else:
                    break
            eq(got, sorted(keys.values()), f"limit {limit}")

    with t.claim("prefixes that are not UTF-8 come in base64"):
        c.http("PUT", "/kv/%fe/%fd/x", b"")
        page = c.http("GET", "/kv?delimiter=/&prefix_base64=" + base64.b64encode(b"\xfe/").decode()).json()
        eq(page["prefixes_base64"], [base64.b64encode(b"\xfe/\xfd/").decode()])
        eq(page["prefixes"], [])


def refused_keys(t, c):
    with t.claim("a NUL is 400 in every spelling, and never cuts the key: a stays as it is"):
        c.http("PUT", "/kv/a", b"untouched")
        for path in ("a%00b", "a%00", "%00", "%00a", "a/%00/b"):
            for method, body in (("PUT", b"cut"), ("GET", None), ("DELETE", None), ("POST", b"cut")):
                query = "?append" if method == "POST" else ""
                eq(c.http(method, f"/kv/{path}{query}", body).status, 400, f"{method} {path}")
        eq(c.http("GET", "/kv/a").body, b"untouched")

    with t.claim("a bad escape is 400"):
        for path in ("%", "a%", "a%2", "%zz", "%2g", "a%%20", "%u1234"):
            eq(c.http("PUT", f"/kv/{path}", b"x").status, 400, path)

    with t.claim("the empty key is 400, and no redirect"):
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            a = c.http(method, "/kv/", b"x" if method == "PUT" else None)
            eq(a.status, 400, method)

    with t.claim("a key has up to 4096 bytes, however it is written; one more is 414"):
        for unit in ("k", "%ff"):
            c.http("PUT", "/kv/" + unit * 4096, b"longest")
            eq(c.http("GET", "/kv/" + unit * 4096, node=2).body, b"longest")
            for method in ("GET", "PUT", "DELETE"):
                eq(c.http(method, "/kv/" + unit * 4097, b"x" if method == "PUT" else None).status, 414)
        eq(c.http("GET", "/kv?prefix=" + "%ff" * 4096 + "&start_after=" + "%fe" * 4096).json()["keys"][0]["size"], 7)
        c.http("DELETE", "/kv/" + "%ff" * 4096)

    with t.claim("a path beyond all buffers is refused too"):
        assert c.http("GET", "/kv/" + "k" * 60000).status in (400, 414, 431)


def sizes(t, c):
    with t.claim("the empty value is a value"):
        eq(c.http("PUT", "/kv/empty", b"").status, 201)
        a = c.http("GET", "/kv/empty", node=3)
        eq((a.status, a.body, a.headers["Content-Length"]), (200, b"", "0"))

    edges = [1, 65535, 65536, 65537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1]
    with t.claim("values around the inline and chunk sizes round-trip"):
        for n in edges:
            value = os.urandom(n)
            eq(c.http("PUT", "/kv/edge", value).status // 100, 2, str(n))
            assert c.http("GET", "/kv/edge", node=2).body == value, n

    big = os.urandom(1 << 20) * (MAX >> 20)
    with t.claim("a value of 64 MiB round-trips"):
        eq(c.http("PUT", "/kv/big", big, timeout=60).status, 201)
        for node in c.nodes():
            assert c.http("GET", "/kv/big", node=node, timeout=60).body == big, f"node-{node}"

    with t.claim("one byte more is 413 before a byte of the body is read, with and without Expect"):
        for extra in ({}, {"Expect": "100-continue"}):
            conn = connect(c.port(1))
            conn.putrequest("PUT", "/kv/big", skip_accept_encoding=True)
            conn.putheader("Content-Length", str(MAX + 1))
            for name, value in extra.items():
                conn.putheader(name, value)
            conn.endheaders()
            a = conn.getresponse()
            eq(a.status, 413)
            eq(a.headers["Content-Type"], "application/problem+json")
            conn.close()

    with t.claim("a sender that sends all the same still reads the 413"):
        a = c.http("PUT", "/kv/big", b"x" * 300000, {"Content-Length": str(MAX + 1)})
        eq(a.status, 413)
        eq(c.http("PUT", "/kv/big", b"x" * (MAX + 1), timeout=60).status, 413, "all of it")

    with t.claim("a chunked body that grows beyond is 413 as well"):
        conn = connect(c.port(1), timeout=60)
        conn.putrequest("PUT", "/kv/big", skip_accept_encoding=True)
        conn.putheader("Transfer-Encoding", "chunked")
        conn.endheaders()
        part = b"%x\r\n%s\r\n" % (1 << 20, b"y" * (1 << 20))
        try:
            for _ in range((MAX >> 20) + 1):
                conn.send(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        eq(conn.getresponse().status, 413)
        conn.close()

    with t.claim("the refused values changed nothing, and the memory of all bodies is given back"):
        assert c.http("GET", "/kv/big", timeout=60).body == big
        wait_until(lambda: b"\nkvfs_memory_bytes 0\n" in c.http("GET", "/metrics").body, 5, "kvfs_memory_bytes is 0")


with Claims() as t, Cluster(base_port=18210, config={"max_value_size": MAX}) as c:
    distinct_keys(t, c)
    refused_keys(t, c)
    sizes(t, c)
