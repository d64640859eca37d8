"""test_articles.py - the experiments of the three articles that kvfs comes from, on real processes (docs/articles.md).

More of them stand elsewhere: agreement of three nodes, 421 and --no-forward in test_replicas.py, one and two nodes down
in test_quorum.py, gateways and mounts under load in tests/mount/test_gateways.py.
"""
import bisect
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import KVFS, KVNODE, Claims, Cluster, Gateway, connect, eq, request, wait_until  # noqa: E402

BASE = 22200
N_KEYS = 100_000
SAMPLE = 300


# --- the ring, as the first article has it ----------------------------------------------------------


def fnv1a(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


class Ring:
    def __init__(self, ids, virtual_nodes=100):
        self.points = sorted((fnv1a(f"{i}#{v}"), i) for i in ids for v in range(virtual_nodes))
        self.hashes = [h for h, _ in self.points]

    def replicas(self, key, n):
        start, found = bisect.bisect_left(self.hashes, fnv1a(key)), []
        for k in range(len(self.points)):
            node = self.points[(start + k) % len(self.points)][1]
            if node not in found:
                found.append(node)
            if len(found) == n:
                break
        return found


def ids(n):
    return [f"node-{i}" for i in range(1, n + 1)]


def config(path, n, rf, base=BASE + 40):
    """Of nodes that need not run: who keeps a key is known without them."""
    nodes = [{"id": i, "addr": f"localhost:{base + k}"} for k, i in enumerate(ids(n))]
    path.write_text(json.dumps({"nodes": nodes, "replication_factor": rf}))
    return path


def placement(t, folder):
    rings = {n: Ring(ids(n)) for n in (5, 6)}
    with t.claim("going from five nodes to six moves the first owner of 13,890 of 100,000 keys"):
        keys = [f"key-{i}" for i in range(N_KEYS)]
        eq(sum(rings[5].replicas(k, 1) != rings[6].replicas(k, 1) for k in keys), 13890)

    with contextlib.ExitStack() as stack:
        gateways = {n: stack.enter_context(Gateway(config(folder / f"{n}.json", n, 3), BASE + 30 + n, folder / f"{n}.log"))
                    for n in (5, 6)}
        with t.claim("and so it is for processes, without a node to ask: replicas distinct, in the article's order"):
            for n, gw in gateways.items():
                conn = connect(gw.wait_ready().port)
                for key in (f"key-{i}" for i in range(0, N_KEYS, N_KEYS // SAMPLE)):
                    got = [r["id"] for r in gw.http("GET", f"/replicas/{key}", conn=conn).json()["replicas"]]
                    eq((got, len(set(got))), (rings[n].replicas(key, 3), 3), key)
                conn.close()
                eq(gw.http("GET", "/status").json()["ring"]["total_vnodes"], n * 100)


def more_points(t, folder):
    with t.claim("128 virtual nodes, as the third article has them, and a factor of 3: distinct nodes, each with so many points"):
        path = config(folder / "more.json", 4, 3)
        path.write_text(json.dumps({**json.loads(path.read_text()), "virtual_nodes": 128}))
        ring = Ring(ids(4), 128)
        with Gateway(path, BASE + 38, folder / "more.log") as gw:
            gw.wait_ready()
            eq(gw.http("GET", "/status").json()["ring"]["total_vnodes"], 4 * 128)
            for i in range(50):
                eq([r["id"] for r in gw.http("GET", f"/replicas/{spread(i)}").json()["replicas"]], ring.replicas(spread(i), 3))


# --- replication factors ------------------------------------------------------------------------------


def owners(c, key):
    return [r["id"] for r in c.http("GET", f"/replicas/{key}").json()["replicas"]]


def spread(i):
    """Keys that are not much alike: FNV-1a places those that are side by side."""
    return f"{fnv1a(str(i)):x}"


class Timed(threading.Thread):
    """One PUT, whose answer is waited for elsewhere: a refusal takes its time."""

    def __init__(self, c, key):
        super().__init__()
        self.c, self.key, self.answer = c, key, None
        self.start()

    def run(self):
        self.answer = self.c.http("PUT", f"/kv/{self.key}", b"x")

    def result(self):
        self.join()
        return self.answer


def with_some_down(t, c, rf, down):
    """Returns the PUTs that are to be refused."""
    gone = {f"node-{i}" for i in range(c.n - down + 1, c.n + 1)}
    refused = None
    with t.claim(f"with {down} of {c.n} down a key of replication_factor {rf} is written while a majority of its copies is there"):
        c.kill9(*range(c.n - down + 1, c.n + 1))
        for i in range(100):
            left = [o for o in owners(c, spread(i)) if o not in gone]
            if len(left) >= rf // 2 + 1:
                eq(c.http("PUT", f"/kv/{spread(i)}", b"x").status // 100, 2, (i, left))
            else:
                refused = refused or Timed(c, spread(i))
        eq(refused is not None, rf < 5)
    return refused


def factors(t, stack):
    """Returns the PUTs that are to be refused, by replication factor."""
    clusters = {rf: stack.enter_context(Cluster(n=n, rf=rf, base_port=BASE + port, store="memory"))
                for rf, n, port in ((1, 3, 10), (2, 3, 14), (5, 5, 18))}
    for rf, c in clusters.items():
        with t.claim(f"replication_factor {rf} of {c.n} nodes: so many copies, and any node answers"):
            for i in range(10):
                a = c.http("PUT", f"/kv/k{i}", b"%d" % i, node=i % c.n + 1)
                eq((a.status, len(a.json()["replications"])), (201, rf - 1))
                eq(len(set(owners(c, f"k{i}"))), rf)
                eq(c.http("GET", f"/kv/k{i}", node=(i + 1) % c.n + 1).body, b"%d" % i)
            eq([k["key"] for k in c.http("GET", "/kv").json()["keys"]], [f"k{i}" for i in range(10)])
    refused = {rf: with_some_down(t, c, rf, down) for (rf, c), down in zip(clusters.items(), (1, 1, 2))}
    clusters[5].kill9(3)
    refused[5] = Timed(clusters[5], "x")
    return refused


def all_refused(t, refused):
    with t.claim("and otherwise refused, with what was needed and who did not answer"):
        for rf, put in refused.items():
            a = put.result()
            eq(a.status, 503)
            assert a.json()["detail"].startswith("nothing was stored: "), a
            assert rf == 1 or f"{rf // 2 + 1} of {rf} replicas needed" in a.json()["detail"], a


def too_large(t, folder):
    with t.claim("a replication_factor above the cluster is refused by mount and gateway, with file, field and value"):
        path = config(folder / "few.json", 3, 5)
        (folder / "mnt").mkdir()
        for command, code in (([KVFS, path, folder / "mnt"], 32), ([KVNODE, "--config", path, "--gateway", f"localhost:{BASE + 39}"], 1)):
            r = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            eq(r.returncode, code, r.stderr)
            assert all(word in r.stderr for word in ("few.json", "replication_factor", "5", "3")), r.stderr


# --- router, health, failover -------------------------------------------------------------------------


def alike(t, c, gateways):
    with t.claim("any number of gateways decide alike"):
        for i in range(20):
            key = f"alike/{i}"
            eq(len({gw.http("GET", f"/replicas/{key}").body for gw in gateways} | {c.http("GET", f"/replicas/{key}").body}), 1)
            a = gateways[i % 3].http("PUT", f"/kv/{key}", key.encode())
            eq(a.status, 201)
            eq([gw.http("GET", f"/kv/{key}").body for gw in gateways], [key.encode()] * 3)
        fingerprints = {gw.http("GET", "/status").json()["ring"]["fingerprint"] for gw in gateways}
        eq(fingerprints, {c.http("GET", "/status").json()["ring"]["fingerprint"]})

    with t.claim("/status tells of each node what it has, and how the ring shares the keys"):
        gw = gateways[0]
        wait_until(lambda: all(n["keys"] > 0 for n in gw.nodes().values()), 10, "their next HELLO")
        s = gw.http("GET", "/status").json()
        for row in s["nodes"]:
            eq((row["alive"], row["recovering"], row["ring_agrees"], row["store"]), (True, False, True, "rocksdb"))
            assert row["keys"] > 0 and row["bytes"] > 0 and row["since"], row
        eq(list(s["ring"]["share"]), ids(3))
        assert 0.99 < sum(s["ring"]["share"].values()) < 1.01, s["ring"]
        own = c.http("GET", "/status", node=2).json()
        eq([n.get("self", False) for n in own["nodes"]], [False, True, False])
        assert {"store", "keys", "bytes", "since", "ring_agrees"} <= set(own["nodes"][1]), own
        assert "repair" in own and "repair" not in s


def dead_node(t, c, gateways):
    key = next(f"u{i}" for i in range(100) if owners(c, f"u{i}")[0] == "node-2")
    gw = gateways[0]
    with t.claim("/status: node-2 dead, 300 virtual nodes, seen by all gateways within a probe"):
        eq(gw.http("PUT", f"/kv/{key}", b"before").json()["primary_node"] in ids(3), True)
        c.kill9(2)
        killed = time.monotonic()
        for g in gateways:
            wait_until(lambda g=g: not g.nodes()["node-2"]["alive"], 10, "node-2 is seen as gone")
        print(f"# dead in the last /status after {time.monotonic() - killed:.2f} s", flush=True)
        s = gw.http("GET", "/status").json()
        eq([(n["id"], n["alive"]) for n in s["nodes"]], [("node-1", True), ("node-2", False), ("node-3", True)])
        eq(s["ring"]["total_vnodes"], 300)
        assert s["nodes"][1]["since"] and "refused" in s["nodes"][1]["last_error"], s["nodes"][1]

    with t.claim("a write reports its primary and the dead replica's error, and succeeds; the read falls through"):
        a = gw.http("PUT", f"/kv/{key}", b"after")
        eq(a.status, 200)
        j = a.json()
        rows = {r["node"]: r for r in j["replications"]}
        assert j["primary_node"] in ("node-1", "node-3"), j
        eq((rows["node-2"]["status"], rows["node-2"]["error"]), ("failed", "Connection refused"), j)
        eq([r["status"] for n, r in rows.items() if n != "node-2"], ["ok"])
        for g in gateways:
            eq(g.http("GET", f"/kv/{key}").body, b"after")
            eq(g.http("GET", f"/kv/{key}?read=one").body, b"after")
    missed = [k for k in (f"m{i}" for i in range(200)) if owners(c, k)[0] == "node-2"][:20]
    for k in missed:
        eq(gw.http("PUT", f"/kv/{k}", k.encode()).status, 201)

    with t.claim("/status comes at once whatever the nodes do"):
        c.sigstop(3)
        try:
            for port in [g.port for g in gateways] + [c.port(1)]:
                for path in ("/status", "/health", "/metrics", f"/replicas/{key}"):
                    start = time.monotonic()
                    eq(request(port, "GET", path, timeout=5).status, 200, path)
                    assert time.monotonic() - start < 1, path
            wait_until(lambda: not gw.nodes()["node-3"]["alive"], 10, "node-3 is seen as frozen")
        finally:
            c.sigcont(3)
    with t.claim("a node that returns is used again within a probe"):
        c.start(2, wait=False)
        c.wait_ready(2)
        back = time.monotonic()
        # What it has missed and is the first to be asked for: who answers "not found" is passed over.
        eq([g.http("GET", f"/kv/{k}?read=one").body for k, g in zip(missed, gateways * len(missed))], [k.encode() for k in missed])
        for g in gateways:
            wait_until(lambda g=g: all(n["alive"] for n in g.nodes().values()), 10, "all are seen as back")
        print(f"# back in the last /status {time.monotonic() - back:.2f} s after /health was 200", flush=True)
        wait_until(lambda: [r["status"] for r in gw.http("PUT", f"/kv/{key}", b"again").json()["replications"]] == ["ok"] * 2, 10,
                   "all three store it")


def failing_store(t, c, gateways):
    with t.claim("a node whose store fails turns /health to 503, and is passed over by all within one more probe"):
        resource.prlimit(c.pid(2), resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        broken = time.monotonic()
        wait_until(lambda: c.http("GET", "/health", node=2).status == 503, 12, "/health of node-2 is 503")
        told = time.monotonic()
        seen = [lambda g=g: g.nodes()["node-2"] for g in gateways]
        seen += [lambda i=i: c.http("GET", "/status", node=i).json()["nodes"][1] for i in c.nodes()]
        for row in seen:
            wait_until(lambda row=row: not row()["alive"], 10, "node-2 is seen as ill")
        print(f"# /health after {told - broken:.1f} s, the last /status {time.monotonic() - told:.1f} s later", flush=True)
        for row in seen:
            assert row()["since"] and row()["last_error"], row()
        assert 'node-down node=node-2' in c.log(1) and "its store does not work" in c.log(1), c.log(1)[-500:]
        for i in range(6):
            key = f"ill/{i}"
            a = gateways[i % 3].http("PUT", f"/kv/{key}", b"x")
            eq(a.status, 201)
            rows = {r["node"]: r["status"] for r in a.json()["replications"]}
            eq((a.json()["primary_node"] != "node-2", rows["node-2"]), (True, "failed"), a)


with Claims() as t:
    with Cluster(base_port=BASE, fsync="never") as c, contextlib.ExitStack() as stack:
        gws = [stack.enter_context(Gateway(c.config_path, BASE + 5 + i, c.dir / f"gateway-{i}.log")) for i in range(3)]
        refused = factors(t, stack)
        placement(t, c.dir)
        more_points(t, c.dir)
        too_large(t, c.dir)
        for g in gws:
            g.wait_ready()
        alike(t, c, gws)
        dead_node(t, c, gws)
        failing_store(t, c, gws)
        all_refused(t, refused)
