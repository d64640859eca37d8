"""test_gateways.py - three gateways and two mounts on one cluster while a node, and then the Redis of another, is killed
and returns: no operation fails, nothing is lost, and all of them tell who is down since when."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvredis import RedisCluster
from kvtest import KVFS, Claims, Gateway, connect, eq, wait_until

BASE = 22250
SEEN_LIMIT_S = 10  # half a second on a machine with nothing else to do
OF_REDIS = 3  # this node keeps its data in a Redis


class Load(threading.Thread):
    """Does step(i) again and again; what it raises is kept."""

    def __init__(self, step):
        super().__init__()
        self.step, self.n, self.failed, self.slowest, self.end = step, 0, None, 0, threading.Event()
        self.start()

    def run(self):
        while not self.end.is_set() and self.failed is None:
            start = time.monotonic()
            try:
                self.step(self.n)
            except Exception as e:  # whatever it is, it is what must not happen
                self.failed = f"operation {self.n}: {type(e).__name__}: {e}"
            self.slowest = max(self.slowest, time.monotonic() - start)
            self.n += 1

    def stop(self):
        self.end.set()
        self.join()


def by_http(gw, name, last):
    """last: of each key what was acknowledged last."""
    conn = connect(gw.port)

    def step(i):
        key, value = f"{name}/{i % 20}", b"%d;" % i * (20000 if i % 20 == 5 else 1)
        path = f"/kv/{key}"
        a = gw.http("PUT", path, value, conn=conn)
        assert a.status in (200, 201), a
        last[key] = value
        a = gw.http("GET", path, conn=conn)
        eq((a.status, a.body), (200, value))
        if i % 10 == 0:
            a = gw.http("GET", f"/kv?prefix={name}/&limit=3", conn=conn)
            eq(a.status, 200)
        if i % 7 == 6:
            a = gw.http("DELETE", path, conn=conn)
            eq(a.status, 204)
            last[key] = None

    return step


def by_file(folder, last):
    folder.mkdir()

    def step(i):
        path, value = folder / f"f{i % 20}", b"%d" % i
        key = f"{folder.name}/{path.name}"
        path.write_bytes(value)
        last[key] = value
        eq(path.read_bytes(), value)
        with open(folder / "log", "ab") as f:
            f.write(b"x")
        if i % 10 == 0:
            assert path.name in os.listdir(folder)
        if i % 7 == 6:
            path.unlink()
            last[key] = None
        if i % 13 == 12:
            path.write_bytes(value)
            path.rename(folder / "moved")
            last[key], last[f"{folder.name}/moved"] = None, value

    return step


def rows(mount):
    return {n["id"]: n for n in json.loads((mount.path / ".kvfs/status").read_text())["nodes"]}


def all_see(views, node, alive):
    """How long until the last of them says so."""
    start = time.monotonic()
    for view in views:
        wait_until(lambda view=view: view()[node]["alive"] == alive, SEEN_LIMIT_S, f"{node} alive: {alive}")
    return time.monotonic() - start


def go_on(loads):
    before = [x.n for x in loads]
    wait_until(lambda: all(x.n > n + 5 or x.failed for x, n in zip(loads, before)), 20, "all go on")


def told_as_down(views, mounts, node):
    """Since when, and why, as each of them has it."""
    for view in views:
        row = view()[node]
        assert row["since"].startswith("20") and row["last_error"], row
    for m in mounts:
        assert f"node-down node={node} " in m.log(), m.log()[-500:]
    return [view()[node]["last_error"] for view in views]


def report(gw):
    return gw.http("PUT", "/kv/report", b"x").json()["replications"]


def node_dies(t, c, loads, views, mounts, victim):
    with t.claim(f"node-{victim} is killed and returns under load: gateways and mounts tell so within a probe"):
        go_on(loads)
        c.kill9(victim)
        gone = all_see(views, f"node-{victim}", False)
        told_as_down(views, mounts, f"node-{victim}")
        go_on(loads)
        c.start(victim, wait=False)
        c.wait_ready(victim)
        back = all_see(views, f"node-{victim}", True)
        for m in mounts:
            wait_until(lambda m=m: f"node-up node=node-{victim} " in m.log(), 5, "it is in the log")
        c.wait_alive()
        print(f"# gone in the last /status after {gone:.2f} s, back {back:.2f} s after /health was 200", flush=True)


def redis_dies(t, c, loads, views, gateways, mounts):
    name, pid = f"node-{OF_REDIS}", c.pid(OF_REDIS)

    def health():
        return c.http("GET", "/health", node=OF_REDIS, timeout=5)

    with t.claim("a Redis is killed under load: its node says why by 503, gateways and mounts within one more probe, all go on"):
        go_on(loads)
        c.redis[OF_REDIS].kill9()
        killed = time.monotonic()
        a = wait_until(lambda: (a := health()).status == 503 and a, 20, "/health is 503")
        ill = time.monotonic() - killed
        assert f"127.0.0.1:{c.redis[OF_REDIS].port}" in a.body.decode(), a
        gone = all_see(views, name, False)
        for why in told_as_down(views, mounts, name):
            assert f"127.0.0.1:{c.redis[OF_REDIS].port}" in why, why
        told = f"127.0.0.1:{c.redis[OF_REDIS].port}"
        wait_until(lambda: any(r["status"] == "failed" and told in r["error"] for r in report(gateways[0])), 10, "a write says so")
        go_on(loads)
        print(f"# 503 {ill:.2f} s after the Redis was killed, in the last /status {gone:.2f} s later", flush=True)
    with t.claim("and when it is back so is its node, without a restart: used again within a probe"):
        c.redis[OF_REDIS].start()
        wait_until(lambda: health().status == 200, 20, "/health is 200")
        back = all_see(views, name, True)
        go_on(loads)
        eq((c.procs[OF_REDIS].poll(), c.pid(OF_REDIS)), (None, pid))
        assert c.log(OF_REDIS).count(" listening ") == 1, "it was started again"
        print(f"# back in the last /status {back:.2f} s after /health was 200", flush=True)


def under_load(t, c, gateways, mounts):
    views = [g.nodes for g in gateways] + [lambda m=m: rows(m) for m in mounts]
    last = {}
    loads = [Load(by_http(g, f"g{i}", last)) for i, g in enumerate(gateways)]
    loads += [Load(by_file(m.path / f"m{i}", last)) for i, m in enumerate(mounts)]
    try:
        node_dies(t, c, loads, views, mounts, 2)
        redis_dies(t, c, loads, views, gateways, mounts)
        node_dies(t, c, loads, views, mounts, 1)
    finally:
        for x in loads:
            x.stop()
    with t.claim("and no operation failed"):
        print(f"# operations: {[x.n for x in loads]}, the slowest {max(x.slowest for x in loads):.2f} s", flush=True)
        eq([x.failed for x in loads if x.failed], [])
        for i, m in enumerate(mounts):
            eq((m.path / f"m{i}/log").stat().st_size, loads[len(gateways) + i].n)
    with t.claim("nor is anything lost: each node comes to hold what was acknowledged last, and so do all that are asked"):
        c.wait_same(list(last), 60, "all three hold the same")
        for i, (key, value) in enumerate(last.items()):
            for a in (gateways[i % 3].http("GET", f"/kv/{key}"), c.http("GET", f"/replica/{key}", node=OF_REDIS)):
                eq((a.status, a.body if value else None), (200 if value else 404, value), key)


def late_mount(t, c):
    with t.claim("a mount, in the background too, starts while a node is down, works, and says which is down since when"):
        c.kill9(3)
        m = c.mount("late")
        (m.path / "late").write_text("x")
        wait_until(lambda: not rows(m)["node-3"]["alive"], SEEN_LIMIT_S, "node-3 is told as down")
        assert rows(m)["node-3"]["since"].startswith("20"), rows(m)
        assert "node-down node=node-3 " in m.log(), m.log()
        (c.dir / "daemon").mkdir()
        eq(subprocess.run([KVFS, c.config_path, c.dir / "daemon"], timeout=30, check=False).returncode, 0)
        try:
            eq((c.dir / "daemon/late").read_text(), "x")
        finally:
            eq(subprocess.run(["fusermount3", "-u", c.dir / "daemon"], check=False).returncode, 0)
        c.start(3)
        wait_until(lambda: rows(m)["node-3"]["alive"], SEEN_LIMIT_S, "node-3 is told as back")
        assert rows(m)["node-3"]["since"].startswith("20"), rows(m)


with Claims() as t, RedisCluster(base_port=BASE, fsync="never", on=[OF_REDIS], redis_fsync="always") as c:
    gws = [Gateway(c.config_path, BASE + 5 + i, c.dir / f"gateway-{i}.log") for i in range(3)]
    try:
        for g in gws:
            g.wait_ready()
        under_load(t, c, gws, [c.mount("a"), c.mount("b", ["read=one"])])
        late_mount(t, c)
        with t.claim("gateways end with 0"):
            eq([g.stop() for g in gws], [0, 0, 0])
    finally:
        for g in gws:
            g.close()
