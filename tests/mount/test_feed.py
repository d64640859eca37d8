"""test_feed.py - what mounts keep while the nodes tell of changes: how soon another mount's changes show, what costs no
request, and what holds whatever is kept."""
import errno
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, soon, wait_until

SHOWS_LIMIT_S = 5  # typically some milliseconds
N = 300
MANY = 400  # more than the kernel asks for at once
ROUNDS = int(os.environ.get("FEED_ROUNDS", 400))


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
    threading.Event().wait(0.5)
    return (n - (requests(c) - before) * took / (time.monotonic() - start)) / times


def keeps(c, mount, path):
    """Until the mount keeps what it sees of a file: its feed is live."""
    wait_until(lambda: cost(c, lambda: os.stat(mount / path), 20) < 0.5, 20, "stat costs no request")


def shows(steps, rounds):
    """Runs steps (change, call, want) by turns; of each the median time in ms until call() gave what it should."""
    took = [[] for _ in steps]
    for _ in range(rounds):
        for (change, call, want), times in zip(steps, took):
            change()
            start = time.monotonic()
            while call() != want:
                eq(time.monotonic() - start < SHOWS_LIMIT_S, True, f"{call()} becomes {want}")
            times.append((time.monotonic() - start) * 1000)
    return [statistics.median(times) for times in took]


def hammer(c, a, b, rounds):
    """Writes through one mount and opens through the other, by turns: each open sees the close before it."""
    for i in range(rounds):
        w, r = (a, b) if i % 2 else (b, a)
        data = b"%d " % i * (1 + i % 50)
        (w / "hammered").write_bytes(data)
        with open(r / "hammered", "rb") as f:
            size = os.fstat(f.fileno()).st_size
            got = f.read()
        eq((size, got == data), (len(data), True), f"round {i}")


def calls(mount, name):
    """How many calls of a kind the kernel has made."""
    lines = (mount / ".kvfs/metrics").read_text().splitlines()
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f'kvfs_call_seconds_count{{call="{name}"}}'))


def fails(call, *args):
    """With which error; 0: not."""
    try:
        call(*args)
    except OSError as e:
        return e.errno
    return 0


class Tail:
    def __init__(self, path, *options):
        self.p = subprocess.Popen(["tail", *options, "-n", "+1", "-f", path], stdout=subprocess.PIPE)
        self.got = b""
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        while part := os.read(self.p.stdout.fileno(), 65536):
            self.got += part

    def stop(self):
        self.p.terminate()
        self.p.wait()
        self.reader.join()
        self.p.stdout.close()


with Claims() as t, Cluster(base_port=21200) as c:
    ma, mb = c.mount("a"), c.mount("b")
    a, b = ma.path, mb.path
    os.mkdir(a / "d")
    for i in range(N):
        c.http("PUT", f"/kv/d/f{i:03}", b"hello")
    keeps(c, a, "d/f000")
    keeps(c, b, "d/f000")

    with t.claim("ls, ls -l and stat of what is known cost no request, cat one"):
        eq(cost(c, lambda: os.listdir(a / "d"), 20) < 0.5, True)
        eq(cost(c, lambda: subprocess.run(["ls", "-l", a / "d"], stdout=subprocess.DEVNULL, check=True), 5) < 5, True)
        eq(cost(c, lambda: os.stat(a / "d/f007"), 300) < 0.2, True)
        eq(cost(c, lambda: os.path.isfile(a / "d/f008"), 300) < 0.2, True)
        eq(cost(c, lambda: (a / "d/f007").read_bytes(), 100) < 3, True)  # two nodes' answers to one question

    with t.claim("what one mount makes, changes and removes shows through the other soon"):
        f = "d/new"
        medians = shows([
            (lambda: (a / f).write_bytes(b"1"), lambda: "new" in os.listdir(b / "d"), True),
            (lambda: (a / f).write_bytes(b"123"), lambda: os.stat(b / f).st_size, 3),
            (lambda: os.system(f"echo x >> {a / f}"), lambda: os.stat(b / f).st_size, 5),
            (lambda: os.chmod(a / f, 0o600), lambda: os.stat(b / f).st_mode & 0o777, 0o600),
            (lambda: os.rename(a / f, a / "d/moved"), lambda: (os.path.exists(b / f), os.path.exists(b / "d/moved")),
             (False, True)),
            (lambda: os.unlink(a / "d/moved"), lambda: os.path.exists(b / "d/moved"), False),
            (lambda: os.mkdir(a / "d/sub"), lambda: os.path.isdir(b / "d/sub"), True),
            (lambda: os.rmdir(a / "d/sub"), lambda: "sub" in os.listdir(b / "d"), False),
        ], 15)
        print("# medians in ms:", *(f"{m:.1f}" for m in medians))

    with t.claim("what a mount does itself shows in it at once"):
        for i in range(30):
            p = a / f"d/own{i % 3}"
            p.write_bytes(b"x" * i)
            eq((os.stat(p).st_size, p.name in os.listdir(a / "d")), (i, True))
            os.chmod(p, 0o640)
            eq(os.stat(p).st_mode & 0o777, 0o640)
            os.rename(p, a / "d/own-moved")
            eq((p.name in os.listdir(a / "d"), "own-moved" in os.listdir(a / "d"), p.exists()), (False, True, False))
            os.unlink(a / "d/own-moved")
            eq(("own-moved" in os.listdir(a / "d"), os.path.exists(a / "d/own-moved")), (False, False))

    with t.claim(f"through two mounts each of {ROUNDS} opens after a close sees it, size and contents"):
        hammer(c, a, b, ROUNDS)

    with t.claim("an open of what a directory under way names sees the close before it"):
        os.mkdir(a / "many")
        for i in range(MANY):
            c.http("PUT", f"/kv/many/f{i:03}", b"")
        keeps(c, b, "many/f000")
        with os.scandir(b / "many") as entries:
            got = b""
            for entry in entries:
                if entry.name == "f000":
                    (a / f"many/f{MANY - 1}").write_bytes(b"written meanwhile")
                elif entry.name == f"f{MANY - 1}":
                    got = pathlib.Path(entry.path).read_bytes()
        eq(got, b"written meanwhile")

    with t.claim("`ls -l` of a directory in which others write, make and remove asks for what has changed only"):
        cost_of = []
        for change in (lambda p: p.write_bytes(b"changed"), lambda p: p.unlink(), lambda p: p.write_bytes(b"new")):
            with os.scandir(b / "many") as entries:
                sizes = {next(entries).name: None}
                change(a / "many/f010")
                soon(lambda: os.path.exists(b / "many/f010"), os.path.exists(a / "many/f010"))
                soon(lambda: os.path.exists(b / "many/f010") and os.stat(b / "many/f010").st_size,
                     os.path.exists(a / "many/f010") and os.stat(a / "many/f010").st_size)
                before = requests(c)
                sizes.update((e.name, os.lstat(e.path).st_size) for e in entries if e.name != "f010")
                n = requests(c) - before
            eq((len(sizes) in (MANY, MANY - 1), n < MANY / 4), (True, True), f"{n} requests for {len(sizes)} entries")
            cost_of.append(n)
        print(f"# requests for {MANY} entries of which one changed:", *cost_of)

    with t.claim("who opens with O_EXCL, makes or removes a directory is told how things are, not how they were"):
        for i in range(40):
            (a / "lock").write_bytes(b"")
            os.stat(b / "lock")
            os.unlink(a / "lock")
            os.close(os.open(b / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(b / "lock")
            os.mkdir(a / "mk")
            os.stat(b / "mk")
            os.rmdir(a / "mk")
            os.mkdir(b / "mk")
            os.rmdir(b / "mk")

    with t.claim("in a directory that another mount removed, or made a symlink, things are as they are there"):
        (a / "d/there").write_bytes(b"behind the symlink")
        for call in (os.mkdir, lambda p: open(p, "x").close(), lambda p: open(p, "w").close(), lambda p: os.symlink("to", p),
                     lambda p: os.rename(b / "d/f001", p), os.stat):
            os.mkdir(a / "goes")
            os.stat(b / "goes")
            fd = os.open(b / "goes", os.O_PATH)
            try:
                os.rmdir(a / "goes")
                wait_until(lambda fd=fd: fails(os.fstat, fd) == errno.ESTALE, 10, "it is told")
            finally:
                os.close(fd)
            eq((fails(call, b / "goes/new"), os.path.exists(a / "goes")), (errno.ENOENT, False))
        os.mkdir(a / "goes")
        os.stat(b / "goes")
        os.rmdir(a / "goes")
        os.symlink("d", a / "goes")
        soon(lambda: fails((b / "goes/there").read_bytes), 0)
        eq((b / "goes/there").read_bytes(), b"behind the symlink")
        os.unlink(a / "goes")

    with t.claim("`tail -f` of a file that another mount appends to shows each line"):
        for options in ((), ("---disable-inotify",)):
            (a / "log").write_bytes(b"first\n")
            tail = Tail(b / "log", *options)
            try:
                want = b"first\n"
                for i in range(3):
                    wait_until(lambda: tail.got == want, 10, f"{want} is shown")
                    with open(a / "log", "ab") as f:
                        f.write(b"line %d\n" % i)
                    want += b"line %d\n" % i
                wait_until(lambda: tail.got == want, 10, f"{want} is shown")
            finally:
                tail.stop()

    with t.claim("a program that reads at the end again, more than there is, gets what another mount appended"):
        (a / "log2").write_bytes(b"first\n")
        with open(b / "log2", "rb") as f:
            eq(f.read(8192), b"first\n")
            with open(a / "log2", "ab") as g:
                g.write(b"second\n")
            got = []
            wait_until(lambda: got.append(f.read(8192)) or got[-1], 10, "it comes")
            eq(got[-1], b"second\n")

    with t.claim("what the kernel is told of a directory that it changes, it does not believe"):
        fd = os.open(a / "d", os.O_RDONLY)
        try:
            os.fstat(fd)
            os.fchmod(fd, 0o755)
            counts = [calls(a, "getattr"), calls(a, "getattr")]  # the counting has some itself
            os.fstat(fd)
            eq(calls(a, "getattr") - counts[1] - (counts[1] - counts[0]), 1)
        finally:
            os.close(fd)

    with t.claim("with one node dead things go on being kept"):
        c.kill9(3)
        keeps(c, b, "d/f003")
        hammer(c, a, b, 60)
        (a / "d/f003").write_bytes(b"with two nodes")
        soon(lambda: os.stat(b / "d/f003").st_size, 14)

    with t.claim("a mount that hears no node any more keeps nothing, and its opens are right again as soon as it does"):
        keeps(c, b, "d/f004")
        mb.sigstop()
        (a / "d/f004").write_bytes(b"changed while it slept")
        threading.Event().wait(1.5)  # longer than the nodes may be silent
        mb.sigcont()
        eq((b / "d/f004").read_bytes(), b"changed while it slept")
        soon(lambda: os.stat(b / "d/f004").st_size, 22)
        keeps(c, b, "d/f004")

    with t.claim("without a majority nothing is served from what was kept: not what is opened"):
        eq(os.stat(b / "d/f005").st_size, 5)
        c.sigstop(1)
        try:
            (b / "d/f005").read_bytes()
            raise AssertionError("it was opened")
        except OSError:
            pass
        finally:
            c.sigcont(1)
        wait_until(lambda: (b / "d/f005").read_bytes() == b"hello", 20, "it is read again")
        hammer(c, a, b, 20)
        eq([m.stop() for m in (ma, mb)], [0, 0])
