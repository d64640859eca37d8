"""test_recovery.py - a node whose data directory is lost: it does not vote before it holds all that others hold."""
import concurrent.futures
import contextlib
import http.client
import os
import re
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, connect, eq, request, wait_until  # noqa: E402

BASE = 19050
LARGE = os.urandom(2 << 20)


def put(c, key, value, node=1):
    a = c.http("PUT", f"/kv/{key}", value, node=node)
    assert a.status in (200, 201), a


def health(c, i):
    """Status and text; 0 while it does not listen yet."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        a = request(c.port(i), "GET", "/health", timeout=2)
        return a.status, a.body.decode()
    return 0, ""


def waits(c, i, *words):
    """Until node i says that it is recovering, and these words."""

    def said():
        status, text = health(c, i)
        return status == 503 and "recovering" in text and all(w in text for w in words)

    wait_until(said, 20, f"node-{i} waits and says {words}: {health(c, i)}")


def in_parallel(*jobs):
    """Runs them at the same time; their results."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        return [f.result() for f in [pool.submit(j) for j in jobs]]


def write_all(c, name, n, node):
    conn = connect(c.port(node))
    for i in range(n):
        a = c.http("PUT", f"/kv/{name}/{i}", b"%d" % i * 500, node=node, conn=conn)
        assert a.status in (200, 201), a
    conn.close()
    return [f"{name}/{i}" for i in range(n)]


def fill(c, n):
    keys = sum(in_parallel(*(lambda k=k: write_all(c, f"k{k}", n // 4, 1 + k % 2) for k in range(4))), [])
    put(c, "large", LARGE)
    put(c, "gone", b"x")
    eq(c.http("DELETE", "/kv/gone").status, 204)
    return keys + ["large", "gone"]


def holds_all(c, i, keys):
    """Node i has of every key what the other replicas have, now; returns of how many it is a replica."""
    conns = {k: connect(c.port(k)) for k in c.nodes()}
    n = 0
    for key in keys:
        owners = [int(r["id"][5:]) for r in c.http("GET", f"/replicas/{key}", conn=conns[i]).json()["replicas"]]
        if i not in owners:
            continue
        n += 1
        copies = {k: c.http("GET", f"/replica/{key}", node=k, conn=conns[k]) for k in owners}
        copies = {k: (a.headers["ETag"] or "", a.body if a.status == 200 else b"") for k, a in copies.items()}
        own = copies.pop(i)
        # A write that another replica missed may be on its way there; what all others have is here.
        assert own >= min(copies.values()), (key, own[0], [(k, v) for k, (v, _) in copies.items()])
    for conn in conns.values():
        conn.close()
    return n


def fresh(t):
    with Cluster(3, BASE, start=False) as c:
        c.start(1, 2, wait=False)
        with t.claim("a node of a new cluster that is not complete is not well, and says for whom it waits"):
            waits(c, 1, "node-3", "node-2: recovering too")
            eq(c.http("PUT", "/kv/a", b"x", timeout=15).status, 503)
            eq(c.repair(1)["recovering"], True)
        c.start(3, wait=False)
        with t.claim("when the last one is there the cluster begins by itself"):
            for i in c.nodes():
                c.wait_ready(i)
            put(c, "a", b"1")
            eq(c.http("GET", "/kv/a", node=3).body, b"1")
        c.stop()
        with t.claim("afterwards two of them are enough"):
            c.start(2, 3)
            put(c, "a", b"2", node=2)
        c.close()


def incarnation(c, i, of):
    nodes = c.http("GET", "/status", node=i).json()["nodes"]
    return next(n.get("incarnation") for n in nodes if n["id"] == f"node-{of}")


def begun(c, i):
    """Some keys were recovered, and not all."""

    def some():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return c.repair(i) if c.repair(i)["keys_recovered"] > 0 else None

    p = wait_until(some, 20, f"node-{i} has begun to recover")
    assert p["recovering"], "it was done before the test could see it: nothing is shown"


def wiped(t, c, keys):
    """Clients write all the while; the node is killed in the middle, and then one that it recovers from."""
    stop = threading.Event()
    acked, errors = {}, []

    def write():
        conn = connect(c.port(1))
        for k in range(100000):
            if stop.is_set():
                break
            key = f"load/{k % 100}"
            a = c.http("PUT", f"/kv/{key}", b"%d" % k, conn=conn)
            if a.status in (200, 201):
                acked[key] = k
            else:
                errors.append(a)
        conn.close()

    lost = incarnation(c, 3, of=3)
    c.kill9(3)
    c.wipe(3)
    put(c, "k0/0", b"changed while it was away")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        c.start(3, wait=False)
        with t.claim("killed while it recovers it goes on, in the same incarnation, which is a new one"):
            begun(c, 3)
            own = incarnation(c, 3, of=3)
            assert own != lost
            c.kill9(3)
            c.start(3, wait=False)
            begun(c, 3)
            eq(incarnation(c, 3, of=3), own)
            wait_until(lambda: incarnation(c, 1, of=3) == own, 10, "node-1 has heard of it")
        with t.claim("no write failed meanwhile"):
            eq(errors, [])
    finally:
        stop.set()
        writer.join()
    c.kill9(2)
    with t.claim("one of those it recovers from dies: it waits, and says for whom"):
        waits(c, 3, "node-2")
    with t.claim("until it is whole it gives no quorum: writes store nothing, reads and listings fail"):
        a, get, listing = in_parallel(
            lambda: c.http("PUT", "/kv/k0/2", b"too early"),
            lambda: c.http("GET", "/kv/k0/3"),
            lambda: c.http("GET", "/kv?prefix=k"),
        )
        eq((a.status, get.status, listing.status), (503, 503, 503))
        assert b"nothing was stored" in a.body, a
    c.start(2, wait=False)
    with t.claim("when that one is back it recovers: when it is well, it holds all that the others hold"):
        c.wait_ready(3)
        eq(holds_all(c, 3, keys), len(keys))
        eq(c.replica(3, "k0/0")[2], b"changed while it was away")
        eq(c.replica(3, "k0/2")[2], b"2" * 500)
        assert c.replica(3, "large")[2] == LARGE
        eq(c.log(3).rsplit("--- start", 1)[-1].count("recovery-waits"), 1)
    with t.claim("what it had recovered before it was killed did not come once more"):
        kept = re.search(r" recovered keys=\d+ kept=(\d+) ", c.log(3))
        assert int(kept[1]) > 0, kept[0]
    with t.claim("afterwards all hold the same of what was written meanwhile, and all that was acknowledged"):
        found = c.wait_same(sorted(acked), 30, "no difference is left")
        eq([k for k in acked if int(found[k][2]) < acked[k]], [])
    with t.claim("it votes: with it and one other there is a quorum"):
        c.kill9(2)
        put(c, "k0/1", b"written by 1 and 3")
        c.start(2)
        eq(c.http("GET", "/kv/k0/1", node=2).body, b"written by 1 and 3")


def loss(t, c):
    """Two of three are lost: a person decides."""
    c.kill9(2, 3)
    c.wipe(2)
    c.wipe(3)
    c.start(2, 3, wait=False)
    with t.claim("more than a minority lost: they wait for each other"):
        waits(c, 2, "node-3: recovering too")
        waits(c, 3, "node-2: recovering too")
    with t.claim("a node that is recovering stops when it is told to"):
        eq(c.stop(2), [0])
    c.start(2, wait=False, extra=["--accept-data-loss"])


def loss_accepted(t, c):
    with t.claim("--accept-data-loss goes on with the one that is left, and the last one then recovers by itself"):
        c.wait_ready(2)
        c.wait_ready(3)
        assert "data-loss-accepted" in c.log(2)
        c.wait_same(["k1/5", "large"], 20, "all is the same")
        eq(c.http("GET", "/kv/k1/5", node=2).body, b"5" * 500)
        eq(c.stop(), [0, 0, 0])


def pair(t):
    """Two replicas: the other one has everything, a majority of others there is none."""
    with Cluster(2, BASE + 20, rf=2) as c:
        keys = fill(c, 20)
        c.kill9(1)
        c.wipe(1)
        c.start(1)
        with t.claim("one of two recovers from the other"):
            c.wait_same(keys, 5, "both hold the same")
            put(c, "k1/1", b"again")


def single(t):
    with Cluster(1, BASE + 25, rf=1) as c:
        with t.claim("a single node begins at once"):
            put(c, "a", b"1")


def larger(t):
    """More nodes than replicas: each recovers its own part, from those that have it too."""
    with Cluster(5, BASE + 30, rf=3) as c:
        keys = fill(c, 100)
        c.kill9(4)
        c.wipe(4)
        c.start(4)
        with t.claim("of five nodes a wiped one recovers its part"):
            n = holds_all(c, 4, keys)
            assert 20 < n < 100 and c.repair(4)["keys_recovered"] == n, (n, c.repair(4))


def outdated(t):
    """A node that recovered on an empty directory is started on its old one again."""
    with Cluster(2, BASE + 40, rf=2) as c:
        put(c, "k", b"old")
        c.kill9(1)
        aside = c.data_dir(1).with_name("aside")
        c.data_dir(1).rename(aside)
        c.start(1)
        put(c, "k", b"new")
        c.kill9(1)
        newer = c.data_dir(1).with_name("newer")
        c.data_dir(1).rename(newer)
        aside.rename(c.data_dir(1))
        c.start(1, wait=False)
        with t.claim("a node that is started on an out of date directory does not vote, and says what to do"):
            wait_until(lambda: "superseded: a newer store of this node is known to node-2" in health(c, 1)[1], 20, "503")
            eq(health(c, 1)[0], 503)
            assert "newer" in c.repair(1)["waits_for"], c.repair(1)
            eq(c.http("GET", "/replica/k", node=1).status, 503)
            eq(c.http("GET", "/kv/k", node=1).status, 503)
            eq(c.log(1).count(" superseded "), 1)
        c.kill9(1)
        c.wipe(1)
        newer.rename(c.data_dir(1))
        c.start(1)
        with t.claim("on the newer one it goes on"):
            eq(c.http("GET", "/kv/k", node=1).body, b"new")


with Claims() as t:
    fresh(t)
    with Cluster(3, BASE + 5) as c:
        wiped(t, c, fill(c, 2000))
        loss(t, c)
        # It gives the others ten seconds to appear.
        pair(t)
        single(t)
        outdated(t)
        larger(t)
        loss_accepted(t, c)
