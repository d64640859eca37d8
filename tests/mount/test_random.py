"""test_random.py - random operations on one file, by several handles, a mapping and another mount, against a model in memory."""
import ctypes
import errno
import mmap
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq

SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))
LIMIT_S = float(os.environ.get("RANDOM_S", 6))
SIZES_MAX = (3 << 20, 3 << 20, 12 << 20)  # the last: too large for the mount's memory
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, off, n):
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(n)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


class Model:
    """The file as it should be, and the handles through which it is worked on."""

    def __init__(self, rnd, a, b):
        self.rnd, self.a, self.b = rnd, a, b
        self.name, self.data, self.fds, self.done = "f0", bytearray(), [], []
        self.size_max = rnd.choice(SIZES_MAX)
        (a / self.name).write_bytes(b"")

    def path(self):
        return self.a / self.name

    def fd(self):
        if not self.fds or (len(self.fds) < 3 and self.rnd.random() < 0.2):
            self.fds.append(os.open(self.path(), os.O_RDWR))
        return self.rnd.choice(self.fds)

    def close_all(self):
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def span(self):
        off = self.rnd.randrange(self.rnd.choice([10, 5000, len(self.data) + 1, self.size_max - 100000]))
        return off, self.rnd.randrange(1, self.rnd.choice([10, 5000, 100000]))

    # --- operations ---

    def write(self):
        off, n = self.span()
        data = self.rnd.randbytes(n)
        os.pwrite(self.fd(), data, off)
        if len(self.data) < off:
            self.data.extend(bytes(off - len(self.data)))
        self.data[off:off + n] = data
        return off, n

    def append(self):
        data = self.rnd.randbytes(self.rnd.randrange(1, 3000))
        fd = os.open(self.path(), os.O_WRONLY | os.O_APPEND)
        os.write(fd, data)
        os.close(fd)
        self.data.extend(data)
        return len(data)

    def read(self):
        off, n = self.span()
        eq(os.pread(self.fd(), n, off) == bytes(self.data[off:off + n]), True, f"read {off}+{n}")
        return off, n

    def truncate(self):
        size = self.rnd.randrange(self.rnd.choice([1, 100, 100000, len(self.data) + 1, self.size_max]))
        if self.rnd.random() < 0.5:
            os.ftruncate(self.fd(), size)
        else:
            os.truncate(self.path(), size)
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))
        return size

    def map(self):
        if not self.data:
            return None
        fd = self.fd()
        with mmap.mmap(fd, len(self.data)) as m:
            off = self.rnd.randrange(len(self.data))
            n = min(self.rnd.randrange(1, 9000), len(self.data) - off)
            eq(m[off:off + n] == bytes(self.data[off:off + n]), True, f"mapped {off}+{n}")
            data = self.rnd.randbytes(n)
            m[off:off + n] = data
            self.data[off:off + n] = data
            m.flush()
        return off, n

    def extend(self, size):
        self.data.extend(bytes(max(0, size - len(self.data))))

    def fill(self, off, n):
        """Zeros in what there is of the range."""
        end = min(off + n, len(self.data))
        if off < end:
            self.data[off:end] = bytes(end - off)

    def allocate(self):
        off, n = self.span()
        mode = self.rnd.choice([0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE])
        fallocate(self.fd(), mode, off, n)
        if mode & (PUNCH_HOLE | ZERO_RANGE):
            self.fill(off, n)
        if not mode & KEEP_SIZE:
            self.extend(off + n)
        return mode, off, n

    def copy(self):
        (off, n), (to, _) = self.span(), self.span()
        n = min(n, len(self.data) - off)
        if n <= 0 or (to < off + n and off < to + n):
            return None
        done = 0
        while done < n:
            got = os.copy_file_range(self.fd(), self.fd(), n - done, off + done, to + done)
            eq(got > 0, True, "copied nothing")
            done += got
        self.extend(to + n)
        self.data[to:to + n] = self.data[off:off + n]
        return off, n, to

    def seek(self):
        """What is said to be a hole has only zeros, and a byte that is none is said to be data."""
        off = self.rnd.randrange(len(self.data) + 1)
        try:
            at = os.lseek(self.fd(), off, os.SEEK_DATA)
        except OSError as e:
            eq(e.errno, errno.ENXIO)
            at = len(self.data)
        eq((off <= at, any(self.data[off:at])), (True, False), f"data from {off}")
        if at < len(self.data):
            hole = os.lseek(self.fd(), at, os.SEEK_HOLE)
            eq(at < hole <= len(self.data), True, f"hole from {at}: {hole} of {len(self.data)}")
        return off, at

    def stat(self):
        fd = self.fd()  # what the other mount closed is sure to be seen by an open only
        eq(os.fstat(fd).st_size, len(self.data))
        eq(os.stat(self.path()).st_size, len(self.data))

    def fsync(self):
        os.fsync(self.fd())

    def close_one(self):
        if self.fds:
            os.close(self.fds.pop(self.rnd.randrange(len(self.fds))))

    def rename(self):
        new = f"f{self.rnd.randrange(4)}"
        os.rename(self.path(), self.a / new)
        self.name = new
        return new

    def replace(self):
        self.close_all()
        self.data = bytearray(self.rnd.randbytes(self.rnd.randrange(60000)))
        self.path().write_bytes(self.data)
        return len(self.data)

    def other_mount(self):
        self.close_all()
        eq((self.b / self.name).read_bytes() == bytes(self.data), True, "through the other mount")
        if self.rnd.random() < 0.5:
            with open(self.b / self.name, "r+b") as f:
                f.seek(0, os.SEEK_END)
                f.write(b"other")
            self.data.extend(b"other")

    def step(self):
        op = self.rnd.choices(
            [self.write, self.append, self.read, self.truncate, self.map, self.stat, self.fsync, self.close_one, self.rename,
             self.replace, self.other_mount, self.allocate, self.copy, self.seek],
            [8, 3, 8, 4, 2, 3, 1, 3, 1, 1, 1, 3, 2, 2])[0]
        self.done.append((op.__name__, None))
        self.done[-1] = (op.__name__, op())


with Claims() as t, Cluster(base_port=18380) as c:
    a, b = c.mount("a").path, c.mount("b").path
    with t.claim(f"random operations leave what the model says (SEED={SEED})"):
        m = Model(random.Random(SEED), a, b)
        end = time.monotonic() + LIMIT_S
        try:
            while time.monotonic() < end:
                m.step()
            m.close_all()
            eq((a / m.name).read_bytes() == bytes(m.data), True, "at the end")
            eq((b / m.name).read_bytes() == bytes(m.data), True, "at the end, through the other mount")
            eq(len(m.done) > 100, True, f"only {len(m.done)} steps")
        except Exception:
            print("# last steps:", *m.done[-12:], sep="\n#   ", flush=True)
            raise
        print(f"# {len(m.done)} steps")
