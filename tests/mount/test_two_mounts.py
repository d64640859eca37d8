"""test_two_mounts.py - two mounts of one cluster: what one closes, the other sees; and exactly one wins."""
import errno
import os
import pathlib
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq


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


with Claims() as t, Cluster(base_port=18330) as c:
    a, b = c.mount("a").path, c.mount("b").path

    with t.claim("a file grown, shrunk or replaced through one is read right through the other"):
        for i, data in enumerate([b"one", b"a longer one", b"x", b"", b"y" * 70000, b"z" * (3 << 20), b"w" * 5]):
            w, r = (a, b) if i % 2 == 0 else (b, a)
            (w / "f").write_bytes(data)
            eq(os.stat(r / "f").st_size, len(data))
            eq((r / "f").read_bytes() == data, True, f"step {i}")
            eq(os.stat(r / "f").st_mtime_ns, os.stat(w / "f").st_mtime_ns)
        (a / "f.new").write_bytes(b"replaced by rename")
        os.rename(a / "f.new", a / "f")
        eq((b / "f").read_bytes(), b"replaced by rename")
        os.truncate(b / "f", 8)
        eq((a / "f").read_bytes(), b"replaced")

    with t.claim("what one removes or makes is gone or there for the other"):
        os.mkdir(a / "d")
        (b / "d/f").write_bytes(b"1")
        eq(os.listdir(a / "d"), ["f"])
        os.unlink(a / "d/f")
        eq((os.path.exists(b / "d/f"), os.listdir(b / "d")), (False, []))
        os.rmdir(b / "d")
        eq(os.path.exists(a / "d"), False)
        os.mkdir(a / "d")
        eq(os.path.isdir(b / "d"), True)
        os.rename(b / "d", b / "e")
        eq(sorted(os.listdir(a)), ["e", "f"])

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
