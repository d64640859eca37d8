"""test_repair.py - replicas that came to differ become the same again, whoever reads or not."""
import os
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, eq, wait_until  # noqa: E402

BASE = 19000
LARGE = os.urandom(3 << 20)


def put(c, key, value, node=1):
    a = c.http("PUT", f"/kv/{key}", value, node=node)
    assert a.status in (200, 201), a


def behind(t, c):
    """Node 3 misses creations, overwrites, deletions and large values."""
    for key, value in {"over": b"1", "gone": b"1", "large/over": LARGE, "again": b"1"}.items():
        put(c, key, value)
    c.kill9(3)
    put(c, "new", b"new")
    put(c, "over", b"2")
    put(c, "large/over", LARGE[1:])
    put(c, "large/new", LARGE[2:])
    eq(c.http("DELETE", "/kv/gone").status, 204)
    eq(c.http("DELETE", "/kv/again").status, 204)
    put(c, "again", b"2")
    for i in range(300):
        put(c, f"many/{i}", b"%d" % i)
    c.start(3)
    keys = ["new", "over", "gone", "again", "large/over", "large/new"]
    with t.claim("a node that was down during writes holds the same as the others soon, and nobody read"):
        found = c.wait_same(keys + [f"many/{i}" for i in range(300)], 20, "node-3 has caught up")
        eq(found["over"][2], b"2")
        eq(found["again"][2], b"2")
        eq(found["gone"][0], 404)
        assert found["large/over"][2] == LARGE[1:] and found["large/new"][2] == LARGE[2:]
        eq({found[f"many/{i}"][2] for i in range(300)}, {b"%d" % i for i in range(300)})
    with t.claim("/status counts what was mended, and tells when all was last the same"):
        n = sum(c.repair(i)["mended"] for i in c.nodes())
        assert 300 <= n <= 700, n  # every key once, or by two nodes that found it at the same time
        wait_until(lambda: c.repair(1).get("last_same") and c.repair(1)["behind"] == 0, 20, "all was found the same")


def restarted(t, c):
    """The node that compares is the one that was away."""
    c.kill9(1)
    put(c, "while-1-was-down", b"x", node=2)
    c.start(1)
    with t.claim("a node that comes back finds by itself what it missed"):
        c.wait_same(["while-1-was-down"], 10, "node-1 has caught up")


def frozen(t, c):
    """It never stopped, so nothing but a comparison tells that it missed something."""
    c.sigstop(2)
    put(c, "while-2-was-frozen", b"x")
    c.sigcont(2)
    with t.claim("a node that was frozen is brought up to date"):
        c.wait_same(["while-2-was-frozen"], 15, "node-2 has caught up")


def value_file(c, i, size):
    """The file of the value of this size at node i."""
    files = [f for f in c.data_dir(i).rglob("*") if f.is_file() and f.stat().st_size == size]
    eq(len(files), 1, f"files of {size} bytes at node-{i}")
    return files[0]


def flip(path):
    with open(path, "r+b") as f:
        f.seek(1234567)
        byte = f.read(1)
        f.seek(1234567)
        f.write(bytes([byte[0] ^ 1]))


def damaged(t, c):
    """A byte of a large value flips on the disk of one node; nobody reads it."""
    put(c, "large/flips", LARGE + b"12345")
    c.wait_same(["large/flips"], 10, "all have it")
    version = c.replica(1, "large/flips")[1]
    flip(value_file(c, 2, len(LARGE) + 5))
    with t.claim("a flipped byte in a value is found by the scrub and healed from the others"):
        wait_until(lambda: c.repair(2)["healed"] >= 1, 20, "node-2 has healed it")
        found = c.wait_same(["large/flips"], 10, "all hold the same again")
        assert found["large/flips"][2] == LARGE + b"12345"
        eq(c.repair(2)["damaged"], 0)
        assert found["large/flips"][1] != version, "healed under the ballot of the copy that was lost"
    put(c, "large/twice", LARGE + b"1234567")
    c.wait_same(["large/twice"], 10, "all have it")
    for i in (1, 3):
        flip(value_file(c, i, len(LARGE) + 7))
    with t.claim("with two of three values damaged the third is served, and brings back the others"):
        a = wait_until(lambda: (a := c.http("GET", "/kv/large/twice")).status != 503 and a, 5, "it is read")
        eq((a.status, a.body == LARGE + b"1234567"), (200, True))
        found = c.wait_same(["large/twice"], 20, "all hold the same again")
        assert found["large/twice"][2] == LARGE + b"1234567"
    with t.claim("after the healing the nodes find each other the same"):
        before = c.repair(1).get("last_same", "")
        wait_until(lambda: c.repair(1).get("last_same", "") > before, 15, "a comparison finds no difference")


def tombstones(t, c):
    """With --tombstone-age 1 what was deleted is forgotten within seconds."""
    for i in range(20):
        put(c, f"forget/{i}", b"x")
    for i in range(20):
        eq(c.http("DELETE", f"/kv/forget/{i}").status, 204)

    with t.claim("tombstones are dropped at all replicas when they are old"):
        wait_until(lambda: sum(c.repair(i)["tombstones_dropped"] for i in c.nodes()) >= 20, 20, "20 are dropped")
        for i in range(20):
            eq({c.replica(k, f"forget/{i}")[0] for k in c.nodes()}, {404})
    with t.claim("a key that is created where a tombstone was dropped stays"):
        put(c, "forget/7", b"back")
        eq(c.wait_same(["forget/7"], 10, "all have it")["forget/7"][2], b"back")
        # Longer than any comparison or second sighting of a tombstone takes.
        dropped = c.repair(1)["compared"]
        wait_until(lambda: c.repair(1)["compared"] >= dropped + 2, 20, "compared once more")
        eq(c.http("GET", "/kv/forget/7").body, b"back")


def under_load(t, c):
    """Writes go on while a node that missed some is brought up to date."""
    stop = threading.Event()
    errors = []

    def write(n):
        for k in range(100000):
            if stop.is_set():
                return
            a = c.http("PUT", f"/kv/load/{n}/{k % 50}", b"%d" % k, node=1 + n % 2)
            if a.status not in (200, 201):
                errors.append(a)

    c.kill9(3)
    threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for th in threads:
        th.start()
    try:
        wait_until(lambda: c.replica(1, "load/1/49")[0] == 200 == c.replica(1, "load/0/49")[0], 30, "all keys are written")
        c.start(3)
        with t.claim("a node catches up while writes go on, and no write fails"):
            def there():
                return all(c.replica(3, f"load/{n}/{k}")[0] == 200 for n in range(2) for k in range(50))

            wait_until(there, 20, "node-3 has all keys")
            eq(errors, [])
    finally:
        stop.set()
        for th in threads:
            th.join()
    with t.claim("when the writes have ended all hold the same"):
        c.wait_same([f"load/{n}/{k}" for n in range(2) for k in range(50)], 20, "no difference is left")


with Claims() as t:
    with Cluster(3, BASE, args=["--tombstone-age", "1", "--scrub-period", "1"]) as c:
        # Before any node was restarted: the writes after that bear numbers ahead of the clock.
        for part in (tombstones, behind, restarted, frozen, damaged, under_load):
            part(t, c)
        with t.claim("all stop when they are told to, and in order"):
            eq(c.stop(), [0, 0, 0])
