"""test_replicas.py - where keys live: /replicas, /replica/{key}, --no-forward, and a gateway."""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import KVNODE, Claims, Cluster, eq, request, wait_until  # noqa: E402

BASE = 18250
ORDERS = {
    "user:42": (1, 3, 2),
    "order:1": (3, 1, 2),
    "order:2": (3, 1, 2),
    "order:3": (3, 1, 2),
    "session:abc": (3, 1, 2),
    "cart:99": (2, 1, 3),
}


def expected(c, key, order):
    rows = ",".join(f'{{"id":"node-{i}","addr":"localhost:{c.port(i)}"}}' for i in order)
    return f'{{"key":"{key}","replicas":[{rows}]}}\n'.encode()


def everywhere(t, c):
    with t.claim("/replicas of known keys is byte for byte what the ring says, from every node"):
        for key, order in ORDERS.items():
            for node in c.nodes():
                a = c.http("GET", f"/replicas/{key}", node=node)
                eq((a.status, a.body), (200, expected(c, key, order)))
                eq(a.headers["Content-Type"], "application/json")

    with t.claim("/replica/{key} is this node's own copy"):
        eq([r["status"] for r in c.http("PUT", "/kv/user:42", b"copy").json()["replications"]], ["ok", "ok"])
        for node in c.nodes():
            a = c.http("GET", "/replica/user:42", node=node)
            eq((a.status, a.body), (200, b"copy"))
            eq(a.headers["ETag"], c.http("HEAD", "/kv/user:42").headers["ETag"])
        eq(c.http("GET", "/replica/nothing").status, 404)

    with t.claim("a request that names another ring is 409, the right one is served"):
        ring = c.http("GET", "/status").json()["ring"]["fingerprint"]
        eq(c.http("GET", "/replica/user:42", headers={"Kvfs-Ring": ring}).status, 200)
        eq(c.http("GET", "/replica/user:42", headers={"Kvfs-Ring": "0123456789abcdef"}).status, 409)


def gateway(t, c):
    """A process without storage that serves the same requests."""
    port = BASE + 9
    with open(c.dir / "gateway.log", "wb") as log:
        args = ["-config", str(c.config_path), "-gateway", f"localhost:{port}"]
        p = subprocess.Popen([KVNODE, *args], stderr=log, cwd=c.dir)
    try:
        def up():
            try:
                return request(port, "GET", "/health").status == 200
            except OSError:
                return False

        wait_until(up, 20, "the gateway answers")

        def sees_all():
            return all(n["alive"] for n in request(port, "GET", "/status").json()["nodes"])

        wait_until(sees_all, 20, "it sees the nodes")
        with t.claim("a gateway puts, gets, lists and deletes, and keeps nothing itself"):
            eq(request(port, "PUT", "/kv/through", b"the gateway").status, 201)
            eq(request(port, "GET", "/kv/through").body, b"the gateway")
            eq(request(port, "GET", "/replicas/user:42").body, expected(c, "user:42", ORDERS["user:42"]))
            eq([k["key"] for k in request(port, "GET", "/kv?prefix=thr").json()["keys"]], ["through"])
            eq(request(port, "GET", "/replica/through").status, 404)
            eq(request(port, "DELETE", "/kv/through").status, 204)
        with t.claim("a gateway ends with 0 on SIGTERM"):
            p.terminate()
            eq(p.wait(15), 0)
    finally:
        if p.poll() is None:
            p.kill()
        p.wait()


def some_nodes(t):
    """Four nodes, two replicas: some nodes hold a key and some do not."""
    with Cluster(n=4, base_port=BASE + 3, rf=2) as c:
        key, owners = "user:42", None
        with t.claim("a node without a copy forwards, whichever it is"):
            owners = [r["id"] for r in c.http("GET", f"/replicas/{key}").json()["replicas"]]
            eq(len(owners), 2)
            for node in c.nodes():
                eq(c.http("PUT", f"/kv/{key}", b"from %d" % node, node=node).status // 100, 2)
                eq(c.http("GET", f"/kv/{key}", node=node % 4 + 1).body, b"from %d" % node)

        with t.claim("asked for its own copy, a node without one answers 421 with the bytes of /replicas"):
            for node in c.nodes():
                a = c.http("GET", f"/replica/{key}", node=node)
                if f"node-{node}" in owners:
                    eq((a.status, a.body), (200, b"from 4"))
                else:
                    eq((a.status, a.body), (421, c.http("GET", f"/replicas/{key}").body))

        with t.claim("with --no-forward a node answers 421 for keys it does not own, and serves those it does"):
            c.stop()
            c.args = ["--no-forward"]
            c.start()
            for node in c.nodes():
                for method, body in (("GET", None), ("PUT", b"x"), ("DELETE", None)):
                    a = c.http(method, f"/kv/{key}", body, node=node)
                    if f"node-{node}" in owners:
                        assert a.status in (200, 201, 204, 404), a
                    else:
                        eq((a.status, a.body), (421, c.http("GET", f"/replicas/{key}").body))


def other_ring(t):
    with Cluster(n=3, base_port=BASE + 5) as c:
        with t.claim("/status and the log of each side show who holds another ring; the others go on"):
            c.stop(3)
            path = c.dir / "other.json"
            path.write_text(json.dumps({**c.config, "virtual_nodes": 50}))
            right, c.config_path = c.config_path, path
            c.start(3, wait=False)
            c.config_path = right

            def differ(node):
                return [n.get("ring_agrees") is False for n in c.http("GET", "/status", node=node).json()["nodes"]]

            c.wait_ready(3)
            wait_until(lambda: differ(1) == differ(2) == [False, False, True], 5, "node-3 is named by the others")
            wait_until(lambda: differ(3) == [True, True, False], 5, "the others are named by node-3")
            row = c.http("GET", "/status").json()["nodes"][2]
            eq(row["last_error"], "another ring: virtual_nodes: 50 there, 100 in cluster.json")
            eq(c.log(1).count("ring-differs"), 1)
            a = c.http("PUT", "/kv/x", b"1")
            eq(a.status, 201)
            failed = [r for r in a.json()["replications"] if r["status"] != "ok"]
            eq(failed, [{"node": "node-3", "status": "failed", "error": "it holds another ring"}])
            eq(c.http("PUT", "/kv/x", b"2", node=3).status, 409)
            eq(c.http("GET", "/kv/x", node=2).body, b"1")
        with t.claim("and no longer once it has the right one"):
            c.stop(3)
            c.start(3)
            wait_until(lambda: differ(1) == differ(3) == [False] * 3, 5, "nobody differs")


def few_nodes(t):
    with Cluster(n=1, base_port=BASE + 8, rf=3) as c:
        with t.claim("replication_factor above the number of nodes: a warning, every node a replica, and it works"):
            assert "too-few-nodes" in c.log(1), c.log(1)
            eq(len(json.loads(c.http("GET", "/replicas/x").body)["replicas"]), 1)
            eq(c.http("PUT", "/kv/x", b"1").status, 201)
            eq(c.http("GET", "/kv/x").body, b"1")


with Claims() as t:
    with Cluster(base_port=BASE) as c:
        everywhere(t, c)
        gateway(t, c)
    some_nodes(t)
    other_ring(t)
    few_nodes(t)
