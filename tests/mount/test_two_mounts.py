"""test_two_mounts.py - two mounts of one cluster: what one closes, the other sees; and exactly one wins."""
import errno
import os
import pathlib
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, soon


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
