"""test_disk.py - real nodes whose disks are damaged, fail, or lose their power.

DISK_CUTS=20 loses the power more often.
"""
import contextlib
import errno
import http.client
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from disks import BUILD, ShimCluster  # noqa: E402
from kvtest import Claims, Cluster, eq, wait_until  # noqa: E402

POWER = BUILD / "tests/test_power"
CUTS = int(os.environ.get("DISK_CUTS", "2"))
SEED = int(os.environ.get("DISK_SEED", str(random.randrange(1 << 30))))
LARGE = 100_000  # bytes of a value that is a file of its own


def value_of(i, size=2000):
    return (b"%d;" % i * (size // 2))[:size]


def health(c, node):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return c.http("GET", "/health", node=node, timeout=5).status
    return None


# --- damage below the records -----------------------------------------------------------------------


def flip_tables(c, node):
    """One bit in every 2 KiB of the first half of each table: what it is opened by stands at its end."""
    n = 0
    for path in c.data_dir(node).glob("db/*.sst"):
        with open(path, "r+b") as f:
            size = path.stat().st_size
            for at in range(1024, size // 2, 2048):
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 4]))
                n += 1
    return n


def damage_under_a_running_node(t):
    with Cluster(base_port=20200) as c:
        keys = [f"key-{i}" for i in range(200)]
        for i, key in enumerate(keys):
            assert c.http("PUT", f"/kv/{key}", value_of(i)).status == 201
        eq(c.stop(2), [0])
        c.start(2)  # what was in its log is in tables now
        eq(c.stop(2), [0])  # and no longer in its memory
        pid = 0
        with t.claim("damage that a running node meets is set aside and refilled; meanwhile every read is right"):
            assert flip_tables(c, 2) > 50
            stop, wrong, reads = threading.Event(), [], [0]

            def read():
                rng = random.Random(SEED)
                while not stop.is_set():
                    i, node = rng.randrange(len(keys)), rng.choice([1, 2, 3])
                    with contextlib.suppress(OSError, http.client.HTTPException):  # node-2 starts anew
                        a = c.http("GET", f"/kv/{keys[i]}", node=node)
                        if a.status != 503 and (a.status, a.body) != (200, value_of(i)):
                            wrong.append((keys[i], node, a))
                        reads[0] += 1

            reader = threading.Thread(target=read)
            reader.start()
            try:
                begun = time.monotonic()
                c.start(2, wait=False)
                pid = c.pid(2)
                wait_until(lambda: "store-set-aside" in c.log(2), 30, "node-2 sets its store aside")
                c.wait_ready(2)
                took = time.monotonic() - begun
                c.wait_alive()
            finally:
                stop.set()
                reader.join()
            eq(wrong, [], "wrong answers")
            assert reads[0] > 10
            print(f"# set aside, and healthy again, {took:.1f} s after its start; {reads[0]} reads", flush=True)
        with t.claim("it is the same process, and the damaged store is there with its reason"):
            eq(c.procs[2].poll(), None)
            eq(c.pid(2), pid)
            log = c.log(2).rsplit("--- start", 1)[-1]
            assert log.index("listening") < log.index("starts anew without it") < log.index("store-set-aside"), log
            (aside,) = c.data_dir(2).glob("damaged-*")
            assert "Corruption" in (aside / "REASON").read_text()
            assert (aside / "db/CURRENT").exists()
        with t.claim("after it every node reads every key right"):
            for i, key in enumerate(keys):
                for node in c.nodes():
                    a = wait_until(lambda k=key, n=node: (a := c.http("GET", f"/kv/{k}", node=n)).status != 503 and a,
                                   20, "an answer")
                    eq((a.status, a.body), (200, value_of(i)), key)
        with t.claim("damaged again soon after, it stops with the reason and does not fill its disk"):
            eq(c.stop(2), [0])
            for path in c.data_dir(2).glob("db/CURRENT"):
                path.write_text("nonsense\n")
            c.start(2, wait=False)
            eq(c.procs[2].wait(20), 1)
            del c.procs[2]
            assert "check this machine's memory" in c.log(2), c.log(2)[-500:]
            eq(len(list(c.data_dir(2).glob("damaged-*"))), 1)


def senseless_store(t):
    with Cluster(n=1, rf=1, base_port=20290) as c, t.claim("a store whose own values make no sense is set aside at start"):
        c.stop(1)
        subprocess.run([BUILD / "tests/test_store_damage", "--spoil", c.dir, c.data_dir(1), "0"], check=True)
        c.start(1)
        assert "starts anew without it" in c.log(1)
        (aside,) = c.data_dir(1).glob("damaged-*")
        assert "floor" in (aside / "REASON").read_text()
        eq(c.http("PUT", "/kv/k", b"v").status, 201)


# --- calls that fail --------------------------------------------------------------------------------

FAULTS = [  # what fails, size of the value, does it end the node's writes
    ("the sync of the log", f"sync .log {errno.EIO}", 100, True),
    ("writing to the log", f"write .log {errno.EIO}", 100, True),
    ("the sync of a large value", f"sync values/ {errno.EIO}", LARGE, True),
    ("writing a large value", f"write values/ {errno.EIO}", LARGE, True),
    ("making a file for a large value", f"create values/ {errno.EIO}", LARGE, False),
]


def one_fault(c, fault, size, ends):
    path = f"/kv/{fault.replace(' ', '-').replace('/', '')}"
    old, new = b"o" * size, b"n" * size
    eq(c.http("PUT", path, old).status, 201, "before")
    c.fault(1, fault + "\n")
    a = c.http("PUT", path, new)
    assert a.status >= 500, a
    certain = b"nothing was stored" in a.body
    a = c.http("GET", path)
    eq((a.status, a.body), (200, old), "while it fails")
    if ends:
        wait_until(lambda: health(c, 1) == 503, 10, "the node says that it is not well")
    c.no_fault(1)
    if ends:
        a = c.http("PUT", path, new)
        assert a.status >= 500, ("a later sync that succeeds proves nothing", a)
        eq(c.http("GET", path).body, old, "afterwards")
    c.stop(1)
    c.start(1)
    a = c.http("GET", path)
    assert a.status == 200 and a.body in ([old] if certain else [old, new]), (certain, a)
    eq(c.http("GET", path).body, a.body, "and again")
    eq(c.http("PUT", path, new).status, 200, "after a restart")
    eq(c.http("GET", path).body, new)


def failing_calls(t):
    with ShimCluster(n=1, rf=1, base_port=20230) as c:
        c.start()
        for name, fault, size, ends in FAULTS:
            with t.claim(f"where {name} fails, the client is told, and the old value stays"):
                one_fault(c, fault, size, ends)
        c.kill9()
        with t.claim("a directory that cannot be read or written is refused, and stays as it is"):
            for call in ("open", "create"):
                c.fault(1, f"{call} db/ {errno.EIO}\n")
                c.start(1, wait=False)
                eq(c.procs.pop(1).wait(20), 1, call)
                assert "nothing was changed" in c.log(1).rsplit("--- start", 1)[-1]
                c.no_fault(1)
            eq(list(c.data_dir(1).glob("damaged*")), [])
            c.start(1)
            eq(c.http("GET", f"/kv/{FAULTS[0][1].replace(' ', '-')}").status, 200)
    with ShimCluster(n=3, base_port=20240) as c:
        c.start()
        with t.claim("a node whose disk fails is out of the quorum, and nobody notices"):
            c.fault(3, f"sync .log {errno.EIO}\n")
            for i in range(10):
                a = c.http("PUT", f"/kv/k{i}", value_of(i), node=1 + i % 3)
                eq(a.status, 201)
                rows = {r["node"]: r["status"] for r in a.json()["replications"]}
                assert rows.get("node-3") != "ok", rows
            wait_until(lambda: health(c, 3) == 503, 10, "node-3 says that it is not well")
            for i in range(10):
                eq(c.http("GET", f"/kv/k{i}", node=1 + i % 3).body, value_of(i))


# --- loss of power ----------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Puts numbered values until told to stop; notes when each was acknowledged."""

    def __init__(self, c, number, stop):
        super().__init__()
        self.c, self.number, self.stopped, self.acks, self.tried = c, number, stop, [], 0

    def run(self):
        while not self.stopped.is_set():
            self.tried += 1
            n = self.tried
            body = value_of(n, LARGE if n % 9 == 0 else 300)
            with contextlib.suppress(OSError, http.client.HTTPException):
                a = self.c.http("PUT", f"/kv/w{self.number}-{n % 5}", body, node=1 + n % 3)
                if a.status in (200, 201):
                    self.acks.append((time.monotonic_ns() // 1000, n, body))


def newest(writer, slot, us):
    done = [(n, body) for at, n, body in writer.acks if at < us and n % 5 == slot]
    return done[-1] if done else (0, None)


def lose_power(c, us, seed):
    for i in c.nodes():
        shutil.rmtree(c.data_dir(i))
        subprocess.run([POWER, "--cut", c.trace_path(i), str(us), str((seed + i) % 4), str(seed * 10 + i),
                        c.data_dir(i)], check=True, env={**os.environ, "LD_PRELOAD": ""})


def check_writers(c, writers, us):
    for w in writers:
        for slot in range(5):
            n, body = newest(w, slot, us)
            if n == 0:
                continue
            a = wait_until(lambda w=w, s=slot: (a := c.http("GET", f"/kv/w{w.number}-{s}")).status != 503 and a,
                           30, "an answer")
            eq(a.status, 200, f"w{w.number}-{slot}: {n} was acknowledged")
            got = int(a.body.split(b";")[0])
            assert got >= n and got % 5 == slot, f"seed {SEED}: w{w.number}-{slot} is {got}, {n} was acknowledged"
            eq(a.body, value_of(got, LARGE if got % 9 == 0 else 300), "the whole value")


def power(t):
    rng = random.Random(SEED)
    with ShimCluster(trace=True, n=3, base_port=20260) as c:
        c.start()
        stop = threading.Event()
        writers = [Writer(c, i, stop) for i in range(3)]
        begun = time.monotonic_ns() // 1000
        for w in writers:
            w.start()
        wait_until(lambda: sum(len(w.acks) for w in writers) > 150, 60, "150 writes")
        stop.set()
        for w in writers:
            w.join()
        ended = time.monotonic_ns() // 1000
        c.kill9()
        c.trace = False
        with t.claim("all nodes lose their power at one moment: nothing acknowledged is missing"):
            for k in range(CUTS):
                us = rng.randrange(begun + (ended - begun) // 4, ended)
                lose_power(c, us, SEED + k)
                c.start()
                check_writers(c, writers, us)
                c.kill9()
                assert not any(list(c.data_dir(i).glob("damaged*")) for i in c.nodes()), f"seed {SEED}"


def another_boot(t):
    with Cluster(n=3, base_port=20310, fsync="everysec") as c:
        mark = c.data_dir(2) / "in-use"
        for i in range(50):
            eq(c.http("PUT", f"/kv/k{i}", value_of(i)).status, 201)
        boot = mark.read_text()
        c.kill9(2)
        c.start(2)
        with t.claim("under --fsync everysec a kill -9 is no loss of power"):
            assert "power-loss" not in c.log(2)
        c.kill9(2)
        mark.write_text("01234567-89ab-cdef-0123-456789abcdef\n")  # another boot's
        with t.claim("a start under another boot without a clean stop says so, and the node comes back"):
            c.start(2)
            assert "power-loss" in c.log(2)
            eq(mark.read_text(), boot)
            for i in range(50):
                eq(c.http("GET", f"/kv/k{i}", node=2).body, value_of(i))
        with t.claim("a clean stop leaves no mark"):
            eq(c.stop(2), [0])
            assert not mark.exists()


with Claims() as t:
    print(f"# seed {SEED}", flush=True)
    damage_under_a_running_node(t)
    senseless_store(t)
    failing_calls(t)
    another_boot(t)
    power(t)
