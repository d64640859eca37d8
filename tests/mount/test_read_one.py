"""test_read_one.py - mounts with read=one: cheaper, possibly old, also without a quorum; and no update is lost."""
import errno
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import KVFS, Claims, Cluster, connect, eq, request, wait_until

BASE = 22230
MISSED = 1200  # keys that a returning node has to get, 500 a second, before those that count


def requests(c):
    """How many replica requests of all kinds the nodes have answered so far."""
    n = 0
    for i in c.procs:
        for line in c.http("GET", "/metrics", node=i).body.decode().splitlines():
            if line.startswith('kvfs_http_requests_total{route="replica"'):
                n += int(line.rsplit(" ", 1)[1])
    return n


def cost(c, call, times):
    """Requests of one call, less those of probes and repair, which go on all the time."""
    call()
    before, start = requests(c), time.monotonic()
    for _ in range(times):
        call()
    n, took = requests(c) - before, time.monotonic() - start
    before, start = requests(c), time.monotonic()
    threading.Event().wait(0.3)
    return (n - (requests(c) - before) * took / (time.monotonic() - start)) / times


def failure(call):
    """What it fails with, and within what time."""
    start = time.monotonic()
    try:
        got = call()
    except OSError as e:
        return errno.errorcode[e.errno], time.monotonic() - start
    raise AssertionError(f"it succeeded: {got!r}")


def first_of(c, key):
    return int(c.http("GET", f"/replicas/{key}").json()["replicas"][0]["id"].split("-")[1])


def in_place(path, at, data):
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, data, at)
    os.close(fd)


def append(path, data):
    with open(path, "ab") as f:
        f.write(data)


def refused_options(t, c):
    with t.claim("read= is quorum or one, and anything else is refused by name"):
        for value in ("two", "", "ONE"):
            r = subprocess.run([KVFS, c.config_path, c.dir, "-o", f"read={value}"], capture_output=True, text=True, check=False)
            eq((r.returncode, f"'{value}' is neither quorum nor one" in r.stderr), (1, True), r.stderr)


def keeps(c, mount, name):
    """Until the mount keeps what it sees of a file: its feed is live."""
    wait_until(lambda: cost(c, lambda: os.stat(mount.path / name), 20) < 0.5, 20, "stat costs no request")


def cheaper(t, c, plain, one):
    (plain.path / "small").write_bytes(b"x" * 1000)
    for m in (plain, one):
        wait_until((m.path / "small").exists, 5, "it is there")
        keeps(c, m, "small")
    with t.claim("a file that is known is read from one replica, where others ask two"):
        cats = [min(cost(c, (m.path / "small").read_bytes, 20) for _ in range(4)) for m in (plain, one)]  # a busy machine asks more
        print(f"# requests of a cat: {cats[0]:.1f}, with read=one {cats[1]:.1f}", flush=True)
        assert cats[1] < cats[0] - 0.5, cats
    with t.claim("what this mount has written it reads, and what others have closed soon"):
        for i in range(30):
            (one.path / "mine").write_bytes(b"%d" % i)
            eq((one.path / "mine").read_bytes(), b"%d" % i)
        (plain.path / "theirs").write_bytes(b"1")
        wait_until((one.path / "theirs").exists, 5, "it is there")
        (plain.path / "theirs").write_bytes(b"22")
        wait_until(lambda: (one.path / "theirs").read_bytes() == b"22", 10, "the new bytes")


def leave_behind(c, keys):
    """The first replica of all keys misses that they become "new", and returns with a lot to catch up with."""
    gone = first_of(c, keys[0])
    for k in keys:
        c.http("PUT", f"/kv/{k}", b"old-" + k.encode())
    others = [i for i in c.nodes() if i != gone]
    c.kill9(gone)

    def put(which):
        conn = connect(c.port(others[which]))
        for i in range(which, MISSED, 2):
            request(0, "PUT", f"/kv/a/{i:04}", b"x", conn=conn)
        conn.close()

    threads = [threading.Thread(target=put, args=(w,)) for w in (0, 1)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    for k in keys:
        eq(c.http("PUT", f"/kv/{k}", b"new-" + k.encode(), node=others[0]).status, 200)
    c.start(gone)
    return gone


def nothing_is_lost(t, c, one):
    keys, i = [], 0
    while len(keys) < 12:  # all with the same first replica
        if first_of(c, f"zz{i}") == first_of(c, "zz0"):
            keys.append(f"zz{i}")
        i += 1
    with t.claim("over HTTP who names a version gets none that is older, though the first replica has it"):
        stale = leave_behind(c, keys)
        old = sum(c.replica(stale, k)[2].startswith(b"old") for k in keys)
        print(f"# {old} of {len(keys)} copies were old at that replica", flush=True)
        for k in keys[8:]:
            etag = c.http("HEAD", f"/kv/{k}", node=stale % c.n + 1).headers["ETag"]
            for node in c.nodes():
                for named in ({"If-None-Match": etag}, {"If-Match": f'"x", {etag}'}, {"If-Range": etag, "Range": "bytes=0-2"}):
                    a = c.http("GET", f"/kv/{k}?read=one", headers=named, node=node)
                    # Mending may give the same value a newer version.
                    eq((a.status in (200, 206, 304, 412), a.body[:3] in (b"new", b"") or a.status == 412), (True, True), f"{named} {a}")
                    assert a.headers["ETag"] >= etag, (etag, a.headers["ETag"])
    with t.claim("what rests on the present contents is right though the first replica is behind"):
        p = [one.path / k for k in keys[:8]]
        old = sum(c.replica(stale, k)[2].startswith(b"old") for k in keys[:8])
        seen = [path.read_bytes()[:3] for path in p[:2]]
        append(p[0], b"+")
        in_place(p[1], 0, b"N")
        append(p[2], b"+")
        in_place(p[3], 1, b"E")
        os.truncate(p[4], 6)
        with open(p[5], "rb") as f:  # read first, and then cut by path while it is open
            f.read(1)
            os.truncate(p[5], 5)
        os.rename(p[6], one.path / "moved")
        eq(failure(lambda: os.close(os.open(p[7], os.O_CREAT | os.O_EXCL | os.O_WRONLY)))[0], "EEXIST")
        print(f"# {old} of {len(p)} copies are still old there; read: {seen}", flush=True)
        want = [b"new-%s+" % keys[0].encode(), b"New-" + keys[1].encode(), b"new-%s+" % keys[2].encode(), b"nEw-" + keys[3].encode(),
                b"new-%s" % keys[4][:2].encode(), b"new-z", None, b"new-" + keys[7].encode()]
        for k, w in zip(keys[:8], want):
            a = c.http("GET", f"/kv/{k}")
            eq((a.status, a.body) if w else a.status, (200, w) if w else 404, k)
        eq(c.http("GET", "/kv/moved").body, b"new-" + keys[6].encode())


def cut_by_path(t, c, plain, other):
    with t.claim("truncate by path cuts what is there now, also while an older version is open here"):
        (plain.path / "cut").write_bytes(b"one-one")
        wait_until((other.path / "cut").exists, 5, "it is there")
        with open(plain.path / "cut", "rb") as f:
            eq(f.read(3), b"one")
            (other.path / "cut").write_bytes(b"two-two")
            os.truncate(plain.path / "cut", 5)
        eq(c.http("GET", "/kv/cut").body, b"two-t")


def without_quorum(t, c, plain, one):
    survivor = first_of(c, "kept/file")
    (plain.path / "kept").mkdir()
    (plain.path / "kept/file").write_bytes(b"kept" * 1000)
    (plain.path / "kept/large").write_bytes(os.urandom(3 << 20))
    os.symlink("file", plain.path / "kept/link")
    large = (plain.path / "kept/large").read_bytes()
    wait_until((one.path / "kept/link").exists, 5, "it is there")
    for f in ("file", "large", "link"):  # the survivor is to have them
        wait_until(lambda f=f: c.replica(survivor, f"kept/{f}")[0] == 200, 10, f)
    c.kill9(*[i for i in c.nodes() if i != survivor])
    with t.claim("without a quorum read=one still reads what the one node has, and the others fail"):
        eq((one.path / "kept/file").read_bytes(), b"kept" * 1000)
        eq((one.path / "kept/large").read_bytes() == large, True)
        eq(os.readlink(one.path / "kept/link"), "file")
        eq(os.stat(one.path / "kept/file").st_size, 4000)
        eq(failure((plain.path / "kept/file").read_bytes)[0], "EHOSTDOWN")
    with t.claim("but that there is nothing it cannot say then, nor change anything, nor list"):
        p = one.path
        for call in (lambda: os.stat(p / "kept/none"), lambda: os.listdir(p / "kept"), lambda: (p / "kept/file").write_bytes(b"lost"),
                     lambda: append(p / "kept/file", b"lost"), lambda: os.mkdir(p / "new"), lambda: os.unlink(p / "kept/file"),
                     lambda: os.rename(p / "kept/file", p / "kept/moved"), lambda: in_place(p / "kept/file", 0, b"lost")):
            what, took = failure(call)
            eq(what, "EHOSTDOWN")
            assert took < 5, took
    with t.claim("over HTTP that is ?read=one; 404 only a majority can say"):
        a = c.http("GET", "/kv/kept/file?read=one", node=survivor)
        eq((a.status, a.body), (200, b"kept" * 1000))
        eq(c.http("HEAD", "/kv/kept/file?read=one", node=survivor).status, 200)
        eq(c.http("GET", "/kv/kept/file?read=one", headers={"Range": "bytes=1-3"}, node=survivor).body, b"ept")
        eq((a := c.http("GET", "/kv/kept/large?read=one", node=survivor).body) == large, True, len(a))
        eq(c.http("GET", "/kv/kept/none?read=one", node=survivor).status, 503)
        eq(c.http("GET", "/kv/kept/file?read=quorum", node=survivor).status, 503)
        eq(c.http("GET", "/kv/kept/file?read=two", node=survivor).status, 400)
        eq(c.http("GET", "/kv/kept/file?ready=one", node=survivor).status, 400)
    with t.claim("and all is as it was when the others return"):
        c.start(*[i for i in c.nodes() if i not in c.procs])
        eq(c.http("GET", "/kv/kept/file").body, b"kept" * 1000)
        wait_until(lambda: sorted(os.listdir(one.path / "kept")) == ["file", "large", "link"], 10, "the listing")
        append(one.path / "kept/file", b"!")
        eq(c.http("GET", "/kv/kept/file").body, b"kept" * 1000 + b"!")


with Claims() as t, Cluster(base_port=BASE, fsync="never") as c:
    refused_options(t, c)
    plain = c.mount("plain", ["timeout=1"])
    one = c.mount("one", ["timeout=1", "read=one"])
    cheaper(t, c, plain, one)
    cut_by_path(t, c, plain, one)
    nothing_is_lost(t, c, one)
    without_quorum(t, c, plain, one)
