"""test_dirs.py - directories: large ones, read while they change, in any order; made and removed by two mounts at once."""
import concurrent.futures
import ctypes
import errno
import itertools
import os
import pathlib
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import KVFS, Claims, Cluster, connect, eq, wait_until

N = int(os.environ.get("DIRS_ENTRIES", "3000"))
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
for fn, args in (("readdir", []), ("telldir", []), ("seekdir", [ctypes.c_long]), ("rewinddir", []), ("closedir", [])):
    getattr(libc, fn).argtypes = [ctypes.c_void_p, *args]


class Dir:
    """opendir(3) and its like."""

    def __init__(self, path):
        self.d = libc.opendir(os.fsencode(path))
        if not self.d:
            raise OSError(ctypes.get_errno(), "opendir")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        libc.closedir(self.d)

    def read(self):
        """The next name; None: the end."""
        ctypes.set_errno(0)
        e = libc.readdir(self.d)
        if not e:
            if ctypes.get_errno():
                raise OSError(ctypes.get_errno(), "readdir")
            return None
        self.ino = ctypes.c_uint64.from_address(e).value
        return os.fsdecode(ctypes.string_at(e + 19))  # behind d_ino, d_off, d_reclen, d_type

    def rest(self):
        return list(iter(self.read, None))

    def tell(self):
        return libc.telldir(self.d)

    def seek(self, pos):
        libc.seekdir(self.d, pos)

    def rewind(self):
        libc.rewinddir(self.d)


def code_of(call, *args):
    """0, or the name of the error that the call ended with."""
    try:
        call(*args)
    except OSError as e:
        return errno.errorcode[e.errno]
    return 0


def fill(c, prefix, n, width=6):
    """n keys below the prefix, as fast as HTTP takes them."""
    def put(k):
        conn = connect(c.port(k % 3 + 1))
        for i in range(k, n, 8):
            eq(c.http("PUT", f"/kv/{prefix}{i:0{width}}", b"x", conn=conn).status, 201)

    together(*[lambda k=k: put(k) for k in range(8)])


def together(*calls):
    """Runs the calls at once; what they returned, or the exception, in order."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except Exception as e:
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    for r in results:
        if isinstance(r, Exception) and not isinstance(r, OSError):
            raise r
    return results


def requests_of(c):
    """How many replica requests the nodes have answered."""
    text = "".join(c.http("GET", "/metrics", node=i).body.decode() for i in c.nodes())
    return sum(float(n) for n in re.findall(r'route="replica",[^}]*} (\d+)', text))


def lines(command, cwd):
    r = subprocess.run(command, shell=True, cwd=cwd, capture_output=True, text=True, timeout=200)
    eq((r.returncode, r.stderr), (0, ""), command)
    return len(r.stdout.splitlines())


with Claims() as t, Cluster(base_port=21620, fsync="never") as c:
    mount = c.mount("a")
    a, b = mount.path, c.mount("b", ["attr_timeout=0"]).path
    fill(c, "many/", N)
    names = {f"{i:06}" for i in range(N)}

    with t.claim(f"{N} entries: ls, ls -l, find and du show each once, for a few requests"):
        before = requests_of(c)
        eq(lines("ls -f many", a), N + 2)
        eq(lines("ls -l many", a), N + 1)
        eq(lines("find many", a), N + 1)
        eq(lines("du -a many", a), N + 1)
        asked = requests_of(c) - before
        eq(asked < N, True, f"{asked} requests")

    with t.claim("two readers of one directory, one handle in each of two threads, see all of it"):
        got = together(lambda: os.listdir(a / "many"), lambda: sorted(e.name for e in os.scandir(a / "many")))
        eq([sorted(g) == sorted(names) for g in got], [True, True])

    with t.claim("telldir, seekdir and rewinddir come back to where they were, also after entries went"):
        with Dir(a / "many") as d:
            seen, marks = [], {}
            while (name := d.read()) is not None:
                seen.append(name)
                if len(seen) % 701 == 0:
                    marks[d.tell()] = len(seen)
            eq(sorted(seen), sorted([".", "..", *names]))
            for name in seen[2:40]:
                os.unlink(b / "many" / name)
                names.discard(name)
            for pos, i in sorted(marks.items(), reverse=True):
                d.seek(pos)
                eq(d.read(), seen[i], f"at {i}")
            d.rewind()
            eq(sorted(d.rest()), sorted([".", "..", *names]))

    with t.claim("entries come and go while it is read: those that stay are seen once, those that go at most once"):
        rest = sorted(names)
        with Dir(a / "many") as d:
            seen = [d.read() for _ in range(100)]
            gone, new = set(rest[50:N:7]), {f"new{i}" for i in range(60)}

            def change():
                for name in sorted(gone)[:300]:
                    os.unlink(a / "many" / name)
                for name in new:
                    (b / "many" / name).write_bytes(b"")

            together(change, lambda: seen.extend(d.rest()))
            eq(len(seen), len(set(seen)))
            gone = set(sorted(gone)[:300])
            eq((names - gone) - set(seen), set())
            eq(set(seen) - names - new - {".", ".."}, set())
            names = (names - gone) | new
        eq(sorted(os.listdir(b / "many")), sorted(names))

    with t.claim("find -delete and rm -rf take all in one pass"):
        eq(lines("find many -name '*5' -delete", a), 0)
        names = {n for n in names if not n.endswith("5")}
        eq(sorted(os.listdir(b / "many")), sorted(names))
        eq(lines("rm -rf many", a), 0)
        eq((os.path.exists(a / "many"), os.path.exists(b / "many")), (False, False))
        eq(c.http("GET", "/kv?prefix=many").json()["keys"], [])

    with t.claim("rm -r takes one pass while another mount adds; what it added then is there"):
        os.mkdir(a / "both")
        for i in range(200):
            (a / f"both/{i:04}").write_bytes(b"")
        late = []

        def add():
            for i in range(40):
                with open(b / f"both/late{i}", "wb") as f:
                    f.write(b"%d" % i)
                late.append(i)

        add_err, _ = together(add, lambda: subprocess.run(["rm", "-rf", a / "both"], stderr=subprocess.DEVNULL))
        eq(isinstance(add_err, Exception) and add_err.errno not in (errno.ENOENT, errno.ESTALE), False, repr(add_err))
        left = set(os.listdir(b / "both")) if (b / "both").exists() else set()
        eq({name[:4] for name in left} <= {"late"}, True, str(left)[:100])
        subprocess.run(["rm", "-rf", a / "both"], check=True)
        eq((b / "both").exists(), False)

    with t.claim("create against rmdir through two mounts, 40 times: what was created is there, whatever rmdir said"):
        refused = 0
        for i in range(40):
            os.mkdir(a / f"race{i}", 0o750)
            (b / f"race{i}").stat()
            excl = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            made, removed = together(lambda i=i: os.close(os.open(b / f"race{i}/f", excl)), lambda i=i: os.rmdir(a / f"race{i}"))
            if made is None:
                eq((b / f"race{i}/f").exists(), True, f"round {i}: {removed!r}")
            else:
                eq(removed, None, f"round {i}: {made!r}")
            if removed is not None:
                eq((removed.errno, (a / f"race{i}").stat().st_mode & 0o777), (errno.ENOTEMPTY, 0o750), f"round {i}")
                refused += 1
        print(f"# rmdir was refused {refused} times of 40", flush=True)

    with t.claim("rmdir looks in the cluster: what the other mount has just stored is ENOTEMPTY, what it has just removed is not"):
        os.mkdir(a / "fresh")
        eq(os.listdir(a / "fresh"), [])
        (b / "fresh/x").write_bytes(b"")
        eq(code_of(os.rmdir, a / "fresh"), "ENOTEMPTY")
        eq(os.listdir(a / "fresh"), ["x"])
        os.unlink(b / "fresh/x")
        eq(code_of(os.rmdir, a / "fresh"), 0)

    with t.claim("names that are keys: a beside a/b, directories that are in no marker, and all of it goes by rm -r"):
        for key in ("k/a", "k/a/b", "k/a/b/c", "k/a//x", "k/a/.", "k/deep/er/f"):
            eq(c.http("PUT", f"/kv/{key.replace('/.', '/%2E')}", key.encode()).status, 201)
        files = {str(p.relative_to(a / "k")): p.read_bytes() for p in (a / "k").rglob("*") if p.is_file()}
        eq(sorted(files.values()), sorted([b"k/a", b"k/a/b", b"k/a/b/c", b"k/a//x", b"k/a/.", b"k/deep/er/f"]))
        eq(files["a/%00key"], b"k/a")
        os.rename(a / "k", a / "k2")
        eq({str(p.relative_to(b / "k2")): p.read_bytes() for p in (b / "k2").rglob("*") if p.is_file()}, files)
        eq(lines("rm -r k2", a), 0)
        eq(c.http("GET", "/kv?prefix=k").json()["keys"], [])

    with t.claim("the link count of a directory is 1, and . and .. have the numbers that stat tells"):
        os.makedirs(a / "n/sub/deeper")
        eq((os.stat(a / "n").st_nlink, os.stat(a).st_nlink), (1, 1))
        with Dir(a / "n/sub") as d:
            inos = {name: d.ino for name in iter(d.read, None)}
        eq(inos, {".": os.stat(a / "n/sub").st_ino, "..": os.stat(a / "n").st_ino,
                  "deeper": os.stat(a / "n/sub/deeper").st_ino})

    with t.claim("a directory of many files moves with open ones, and comes back"):
        n = N // 10
        fill(c, "tree/sub/", n)
        with open(a / "tree/sub/000000", "ab") as f, open(a / "tree/fresh", "wb") as g:
            f.write(b"+")
            g.write(b"before ")
            g.flush()
            os.rename(a / "tree", a / "moved")
            f.write(b"+")
            g.write(b"after")
        eq(((b / "moved/sub/000000").read_bytes(), (b / "moved/fresh").read_bytes()), (b"x++", b"before after"))
        eq((sorted(os.listdir(b / "moved/sub")), (b / "tree").exists()), ([f"{i:06}" for i in range(n)], False))
        os.rename(b / "moved", b / "tree")
        eq((len(os.listdir(a / "tree/sub")), (a / "moved").exists()), (n, False))

    with t.claim("a directory moves with all that is made, and without what is removed, in it meanwhile"):
        n = N // 10
        fill(c, "busy/sub/", n)
        kept, begun, stop = set(), threading.Event(), threading.Event()
        fd = os.open(a / "busy/sub", os.O_PATH)

        def work():
            for i in itertools.count():
                if stop.is_set():
                    return
                os.mkdir(f"d{i}", dir_fd=fd)
                os.symlink("to", f"l{i}", dir_fd=fd)
                os.close(os.open(f"f{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=fd))
                os.rmdir(f"d{i}", dir_fd=fd)
                os.rename(f"l{i}", f"m{i}", src_dir_fd=fd, dst_dir_fd=fd)
                kept.update((f"f{i}", f"m{i}"))
                begun.set()

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            begun.wait(30)
            os.rename(a / "busy", a / "busy2")
            stop.set()
            done.result()
        os.close(fd)
        eq(set(os.listdir(b / "busy2/sub")) - {f"{i:06}" for i in range(n)}, kept)
        eq((len(os.listdir(a / "busy2/sub")), (b / "busy").exists()), (n + len(kept), False))

    with t.claim("what the kernel has forgotten this mount forgets too"):
        program = pathlib.Path(KVFS).read_bytes()  # the sanitizer keeps what was freed
        if os.getuid() == 0 and b"__asan_init" not in program:
            fill(c, "mem/", 2 * N)
            eq(lines("find mem -size -10 -links 1", a), 2 * N + 1)

            def memory_kib():
                return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{mount.proc.pid}/status").read_text()).group(1))

            def shrunk(first):
                pathlib.Path("/proc/sys/vm/drop_caches").write_text("2")
                lines("find mem -size -10 -links 1", a)
                pathlib.Path("/proc/sys/vm/drop_caches").write_text("2")
                return memory_kib() < first + 4096

            first = memory_kib()
            for _ in range(3):
                shrunk(first)
            wait_until(lambda: shrunk(first), 60, "no more memory after find and drop_caches, again and again")
