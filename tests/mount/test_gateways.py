"""test_gateways.py - three gateways and two mounts on one cluster while a node is killed and returns: no operation
fails, and all of them tell who is down since when."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import KVFS, Claims, Cluster, Gateway, connect, eq, wait_until

BASE = 22250
SEEN_LIMIT_S = 10  # half a second on a machine with nothing else to do


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


def by_http(gw, name):
    conn = connect(gw.port)

    def step(i):
        path, value = f"/kv/{name}/{i % 20}", b"%d" % i
        a = gw.http("PUT", path, value, conn=conn)
        assert a.status in (200, 201), a
        a = gw.http("GET", path, conn=conn)
        eq((a.status, a.body), (200, value))
        if i % 10 == 0:
            a = gw.http("GET", f"/kv?prefix={name}/&limit=3", conn=conn)
            eq(a.status, 200)
        if i % 7 == 6:
            a = gw.http("DELETE", path, conn=conn)
            eq(a.status, 204)

    return step


def by_file(folder):
    folder.mkdir()

    def step(i):
        path, value = folder / f"f{i % 20}", b"%d" % i
        path.write_bytes(value)
        eq(path.read_bytes(), value)
        with open(folder / "log", "ab") as f:
            f.write(b"x")
        if i % 10 == 0:
            assert path.name in os.listdir(folder)
        if i % 7 == 6:
            path.unlink()
        if i % 13 == 12:
            path.write_bytes(value)
            path.rename(folder / "moved")

    return step


def rows(mount):
    return {n["id"]: n for n in json.loads((mount.path / ".kvfs/status").read_text())["nodes"]}


def all_see(views, node, alive):
    """How long until the last of them says so."""
    start = time.monotonic()
    for view in views:
        wait_until(lambda view=view: view()[node]["alive"] == alive, SEEN_LIMIT_S, f"{node} alive: {alive}")
    return time.monotonic() - start


def under_load(t, c, gateways, mounts):
    views = [g.nodes for g in gateways] + [lambda m=m: rows(m) for m in mounts]
    loads = [Load(by_http(g, f"g{i}")) for i, g in enumerate(gateways)]
    loads += [Load(by_file(m.path / f"m{i}")) for i, m in enumerate(mounts)]
    try:
        for victim in (2, 1):
            with t.claim(f"node-{victim} is killed and returns under load: gateways and mounts tell so within a probe"):
                wait_until(lambda: all(x.n > 5 or x.failed for x in loads), 20, "all work")
                c.kill9(victim)
                gone = all_see(views, f"node-{victim}", False)
                for view in views:
                    row = view()[f"node-{victim}"]
                    assert row["since"].startswith("20") and row["last_error"], row
                for m in mounts:
                    assert f"node-down node=node-{victim} " in m.log(), m.log()[-500:]
                before = [x.n for x in loads]
                wait_until(lambda: all(x.n > n + 5 or x.failed for x, n in zip(loads, before)), 20, "all go on")
                c.start(victim, wait=False)
                c.wait_ready(victim)
                back = all_see(views, f"node-{victim}", True)
                for m in mounts:
                    wait_until(lambda m=m: f"node-up node=node-{victim} " in m.log(), 5, "it is in the log")
                c.wait_alive()
                print(f"# gone in the last /status after {gone:.2f} s, back {back:.2f} s after /health was 200", flush=True)
    finally:
        for x in loads:
            x.stop()
    with t.claim("and no operation failed"):
        print(f"# operations: {[x.n for x in loads]}, the slowest {max(x.slowest for x in loads):.2f} s", flush=True)
        eq([x.failed for x in loads if x.failed], [])
        for i, m in enumerate(mounts):
            eq((m.path / f"m{i}/log").stat().st_size, loads[len(gateways) + i].n)


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


with Claims() as t, Cluster(base_port=BASE, fsync="never") as c:
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
