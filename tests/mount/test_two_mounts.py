"""test_two_mounts.py - two mounts of one cluster: what one closes, the other sees; exactly one wins; and directories tell of it."""
import errno
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, connect, eq, soon


def together(*calls):
    """Runs the calls at once; what they returned, or the exception, in order."""
    results = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(i):
        barrier.wait()
        try:
            results[i] = calls[i]()
        except OSError as e:
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    return results


def size_and_time(path):
    """As an open sees them: that is the promise, whatever is cached."""
    fd = os.open(path, os.O_RDONLY)
    try:
        st = os.fstat(fd)
        return st.st_size, st.st_mtime_ns
    finally:
        os.close(fd)


# --- the times of directories --------------------------------------------------------------------


def times(path):
    st = os.stat(path)
    return st.st_mtime_ns, st.st_ctime_ns


def sync(path):
    """fsync of a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def settled(*pairs):
    """Whatever was to become of the times of directories changed through w has: one changed later shows through r."""
    for i, (w, _) in enumerate(pairs):
        os.makedirs(w / f"settled{i}", exist_ok=True)
        os.mkdir(w / f"settled{i}/x")
        os.rmdir(w / f"settled{i}/x")
    for i, (w, r) in enumerate(pairs):
        soon(lambda: times(r / f"settled{i}"), times(w / f"settled{i}"), 20)


def names_move_times(w, r, top):
    """In three steps, so that it waits at the same time for more than one pair."""
    dirs = [f"{top}/{d}" for d in ("made", "dir", "link", "pipe", "moved", "from", "to", "removed", "rmdir")]
    for d in dirs:
        os.makedirs(w / d)
    for f in ("moved/f", "from/f", "removed/f"):
        (w / top / f).write_bytes(b"")
    os.mkdir(w / top / "rmdir/d")
    for d in dirs:
        sync(w / d)
    before = {d: times(w / d) for d in dirs}
    yield
    for d in dirs:
        soon(lambda: times(r / d), before[d])
    (w / top / "made/f").write_bytes(b"x")
    os.mkdir(w / top / "dir/d")
    os.symlink("x", w / top / "link/l")
    os.mkfifo(w / top / "pipe/p")
    os.rename(w / top / "moved/f", w / top / "moved/g")
    os.rename(w / top / "from/f", w / top / "to/f")
    os.unlink(w / top / "removed/f")
    os.rmdir(w / top / "rmdir/d")
    after = {d: times(w / d) for d in dirs}
    yield
    for d in dirs:
        eq([x < y for x, y in zip(before[d], after[d])], [True, True], d)
        soon(lambda: times(r / d), after[d], 20)
        eq(times(w / d), after[d])


def directory_times():
    with t.claim("each name that one mount makes, removes or moves shows in the time of its directory through the other, in a moment"):
        steps = [names_move_times(a, b, "names"), names_move_times(*strict, "names-strict")]
        for _ in range(3):
            for each in steps:
                next(each, None)

    with t.claim("fsync of the directory, and the end of the mount, store its time at once"):
        w, r = strict[0], strict[1]
        os.mkdir(w / "synced")
        os.mkdir(w / "synced/d")
        sync(w / "synced")
        eq(times(r / "synced"), times(w / "synced"))
        e = c.mount("e")
        os.mkdir(e.path / "synced/e")
        want = times(e.path / "synced")
        eq(e.stop(), 0)
        eq(times(r / "synced"), want)
        eq(times(r / "synced") > times(r / "synced/d"), True)

    with t.claim("a directory that is removed while its time is not stored stays removed, and who removes it is not held up"):
        keys = []
        for i, (w, r) in enumerate([(a, b), (b, a), strict, strict[::-1]] * 5):
            d = f"gone{i}"
            os.makedirs(w / d / "x")
            os.rmdir(w / d / "x")
            soon(lambda: os.path.isdir(r / d), True)
            if i % 3 == 0:
                os.rmdir(r / d)
            elif i % 3 == 1:
                os.rename(r / d, r / f"{d}-moved")
                keys.append(f"{d}-moved")
            else:
                os.rmdir(w / d)
                os.mkdir(r / d)
                os.utime(r / d, ns=(5, 6))
                keys.append(d)
        settled((a, b), (b, a), strict, strict[::-1])
        got = [x["key"] for x in c.http("GET", "/kv?prefix=gone&limit=1000").json()["keys"]]
        eq(sorted(got), sorted(f"{k}/" for k in keys))
        for i in range(2, 20, 3):
            eq(os.stat(strict[0] / f"gone{i}").st_mtime_ns, 6)

    with t.claim("a time that was set stays, whoever changed something before; mode, owner and attributes too"):
        pairs, want = [(a, b), strict], []
        for i, (w, r) in enumerate(pairs):
            here, there = w / f"set{i}", r / f"set{i}"
            for d in ("here", "there", "mode"):
                os.makedirs(here / d / "x")
                soon(lambda: os.path.isdir(there / d), True)
            os.utime(here / "here", ns=(1, 2))
            os.utime(there / "there", ns=(3, 4))
            os.chmod(there / "mode", 0o711)
            os.chown(there / "mode", 12, 34)
            os.setxattr(there / "mode", "user.a", b"b")
            want.append(os.stat(here / "mode").st_mtime_ns)
        settled(*pairs)
        for i, pair in enumerate(pairs):
            for path in (m / f"set{i}" for m in pair):
                soon(lambda: [os.stat(path / d).st_mtime_ns for d in ("here", "there", "mode")], [2, 4, want[i]])
                st = os.stat(path / "mode")
                eq((oct(st.st_mode), st.st_uid, st.st_gid, os.getxattr(path / "mode", "user.a")), (oct(0o40711), 12, 34, b"b"))

    with t.claim("a directory that exists only through keys gets no record for its time"):
        c.http("PUT", "/kv/only-keys/1", b"")
        soon(lambda: os.path.isdir(a / "only-keys"), True)
        before = times(a / "only-keys")
        os.mkdir(a / "only-keys/d")
        eq(times(a / "only-keys") > before, True)
        settled((a, b))
        eq(c.http("GET", "/kv/only-keys/").status, 404)

    with t.claim("making and removing many files stores the time of their directory about once a second"):
        os.mkdir(a / "many")
        conn = connect(c.port(1))
        conn.request("GET", "/watch?prefix=many/")
        changes = conn.getresponse()
        start = time.monotonic()
        for i in range(100):
            (a / f"many/{i}").write_bytes(b"x")
        for i in range(100):
            os.unlink(a / f"many/{i}")
        took = time.monotonic() - start
        settled((a, b))
        c.http("PUT", "/kv/many/last", b"")
        stored, key = 0, ""
        while key != "many/last":
            key = json.loads(changes.readline()).get("key", "")
            stored += key == "many/"
        conn.close()
        eq(1 <= stored <= took + 3, True, f"{stored} times in {took:.1f} s")


with Claims() as t, Cluster(base_port=18330) as c:
    a, b = c.mount("a").path, c.mount("b").path
    strict = c.mount("c", ["attr_timeout=0"]).path, c.mount("d", ["attr_timeout=0"]).path

    def changes_show(a, b, stat, soon):
        """stat tells size and time of a file; soon(call, want): call() gives it, now or in a moment."""
        for i, data in enumerate([b"one", b"a longer one", b"x", b"", b"y" * 70000, b"z" * (3 << 20), b"w" * 5]):
            w, r = (a, b) if i % 2 == 0 else (b, a)
            (w / "f").write_bytes(data)
            eq(stat(r / "f"), stat(w / "f"), f"step {i}")
            eq(stat(r / "f")[0], len(data), f"step {i}")
            eq((r / "f").read_bytes() == data, True, f"step {i}")
        (a / "f.new").write_bytes(b"replaced by rename")
        os.rename(a / "f.new", a / "f")
        eq((b / "f").read_bytes(), b"replaced by rename")
        os.truncate(b / "f", 8)
        eq((a / "f").read_bytes(), b"replaced")
        os.mkdir(a / "d")
        (b / "d/f").write_bytes(b"1")
        soon(lambda: os.listdir(a / "d"), ["f"])
        os.unlink(a / "d/f")
        soon(lambda: os.path.exists(b / "d/f"), False)
        soon(lambda: os.listdir(b / "d"), [])
        os.rmdir(b / "d")
        soon(lambda: os.path.exists(a / "d"), False)
        os.mkdir(a / "d")
        soon(lambda: os.path.isdir(b / "d"), True)
        os.rename(b / "d", b / "e")
        soon(lambda: sorted(os.listdir(a)), ["e", "f"])
        os.rmdir(b / "e")
        os.unlink(a / "f")

    with t.claim("where nothing is cached all that one closes, makes or removes shows through the other at once"):
        changes_show(*strict, lambda p: (os.stat(p).st_size, os.stat(p).st_mtime_ns), lambda call, want: eq(call(), want))

    with t.claim("by default too what one closes is what the other opens, and the rest shows in a moment"):
        changes_show(a, b, size_and_time, soon)

    with t.claim("an open file reads one version to its end, a large one may be stale"):
        (a / "v").write_bytes(b"1" * 200000)
        with open(b / "v", "rb", buffering=0) as f:
            first = f.read(1000)
            (a / "v").write_bytes(b"2" * 300000)
            eq(set(first + f.read()), {ord("1")})
        eq(set((b / "v").read_bytes()), {ord("2")})
        (a / "v").write_bytes(b"3" * (5 << 20))
        with open(b / "v", "rb", buffering=0) as f:
            got = f.read(1000)
            (a / "v").write_bytes(b"4" * (5 << 20))
            try:
                while part := f.read(1 << 20):
                    got += part
            except OSError as e:
                eq(e.errno, errno.ESTALE)
            eq(set(got), {ord("3")})

    with t.claim("four shells that append 250 lines each through two mounts give 1,000 whole lines"):
        script = 'for i in $(seq 250); do echo "$1 line $i" >> log; done'
        shells = [subprocess.Popen(["bash", "-ec", script, "sh", f"shell{k}"], cwd=(a, b)[k % 2]) for k in range(4)]
        eq([p.wait(120) for p in shells], [0] * 4)
        lines = (a / "log").read_text().splitlines()
        eq(len(lines), 1000)
        eq(set(lines), {f"shell{k} line {i}" for k in range(4) for i in range(1, 251)})
        for k in range(4):
            eq([x for x in lines if x.startswith(f"shell{k} ")], [f"shell{k} line {i}" for i in range(1, 251)])

    with t.claim("open handles that append through both mounts lose nothing either"):
        with open(a / "log2", "ab", buffering=0) as fa, open(b / "log2", "ab", buffering=0) as fb:
            for i in range(20):
                fa.write(b"a%02d\n" % i)
                fb.write(b"b%02d\n" % i)
                if i % 5 == 4:
                    together(lambda: os.fsync(fa.fileno()), lambda: os.fsync(fb.fileno()))
        lines = (a / "log2").read_bytes().split()
        eq(sorted(lines), sorted([b"a%02d" % i for i in range(20)] + [b"b%02d" % i for i in range(20)]))

    with t.claim("`set -C; > lock` through both at once has one winner, 100 times out of 100"):
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY

        def lock(m, i):
            os.close(os.open(m / f"lock{i}", flags))
            return "won"

        for i in range(100):
            got = together(lambda i=i: lock(a, i), lambda i=i: lock(b, i))
            eq([g for g in got if g == "won"], ["won"], f"round {i}")
            eq([g.errno for g in got if g != "won"], [errno.EEXIST], f"round {i}")
        shells = [subprocess.Popen(["bash", "-c", "set -C; > shlock"], cwd=m, stderr=subprocess.DEVNULL) for m in (a, b)]
        eq(sorted(p.wait(20) for p in shells), [0, 1])

    with t.claim("mkdir through both at once has one winner"):
        for i in range(30):
            got = together(lambda i=i: os.mkdir(a / f"dir{i}"), lambda i=i: os.mkdir(b / f"dir{i}"))
            eq((got.count(None), [g.errno for g in got if g is not None]), (1, [errno.EEXIST]), f"round {i}")

    with t.claim("a directory of one mount's unstored file is not removed under it"):
        os.mkdir(a / "busy")
        fd = os.open(a / "busy/f", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"x")
        try:
            os.rmdir(a / "busy")
        except OSError as e:
            eq(e.errno, errno.ENOTEMPTY)
        else:
            raise AssertionError("rmdir succeeded")
        os.close(fd)
        eq((b / "busy/f").read_bytes(), b"x")

    directory_times()
