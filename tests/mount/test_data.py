"""test_data.py - what is in a file: holes, zeros, copies, direct and mapped access, and contents too large for memory."""
import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import pathlib
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, wait_until

KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE = 1, 2, 8, 16, 32
MIB = 1 << 20
MAX = 64 * MIB
LARGE = 10 * MIB  # does not stay in memory
libc = ctypes.CDLL(None, use_errno=True)


def fails(code, call, *args, **kw):
    try:
        call(*args, **kw)
    except OSError as e:
        eq(errno.errorcode.get(e.errno, e.errno), errno.errorcode[code])
    else:
        raise AssertionError(f"{call} did not fail with {errno.errorcode[code]}")


def fallocate(fd, mode, off, n):
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(n)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


@contextlib.contextmanager
def opened(path, flags, mode=0o644):
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def pattern(n, seed=0):
    """n bytes in which no two MiB are alike."""
    return b"".join(bytes([(i + seed) % 251]) + b"%07d" % (i + seed) for i in range((n + 7) // 8))[:n]


def stored(key):
    a = c.http("GET", "/kv/" + key, node=2, timeout=60)
    return a.body if a.status == 200 else None


def put(name, data=b""):
    (mnt / name).write_bytes(data)
    return mnt / name


def same(got, want):
    """Without printing megabytes."""
    eq((len(got), hashlib.sha256(got).hexdigest()), (len(want), hashlib.sha256(want).hexdigest()))


def heap(m):
    """Bytes of the mount's own memory."""
    text = pathlib.Path(f"/proc/{m.proc.pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) << 10


def read_bytes_of(m):
    """What the mount has received from nodes, about."""
    return int(pathlib.Path(f"/proc/{m.proc.pid}/io").read_text().split("rchar:")[1].split()[0])


def attempt(call, *args):
    """The error, or None."""
    try:
        call(*args)
    except OSError as e:
        return e
    return None


def sanitized():
    return "asan" in os.environ.get("KVFS", "")


with Claims() as t, Cluster(base_port=21300, fsync="never", config={"max_value_size": MAX}) as c:
    m = c.mount()
    mnt = m.path
    text = pattern(LARGE)

    # --- fallocate, lseek, copy_file_range -------------------------------------------------------------------------------

    for size, where in ((300_000, "in memory"), (LARGE, "in a temporary file")):
        with t.claim(f"fallocate extends, keeps the size, makes zeros and holes, {where}"):
            want = bytearray(text[:size])
            with opened(put("fa", want), os.O_RDWR) as fd:
                fallocate(fd, 0, 0, 1000)
                eq(os.fstat(fd).st_size, size)
                fallocate(fd, 0, size - 10, 5010)
                want += bytes(5000)
                fallocate(fd, KEEP_SIZE, size, 1 << 20)
                eq(os.fstat(fd).st_size, size + 5000)
                fallocate(fd, KEEP_SIZE | PUNCH_HOLE, 5000, 100_000)
                want[5000:105_000] = bytes(100_000)
                fallocate(fd, KEEP_SIZE | PUNCH_HOLE, size, 1 << 20)
                want[size:] = bytes(5000)
                fallocate(fd, ZERO_RANGE | KEEP_SIZE, 200_001, 10)
                want[200_001:200_011] = bytes(10)
                fallocate(fd, ZERO_RANGE, len(want) - 1, 4001)
                want[-1:] = bytes(4001)
                same(os.pread(fd, len(want) + 1, 0), bytes(want))
            same(stored("fa"), bytes(want))

        with t.claim(f"SEEK_HOLE and SEEK_DATA answer, {where}"):
            with opened(mnt / "sk", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
                os.pwrite(fd, b"data", size)
                end = size + 4
                data = os.lseek(fd, 0, os.SEEK_DATA)
                eq((0 <= data <= size, os.lseek(fd, size, os.SEEK_DATA), os.lseek(fd, size, os.SEEK_HOLE)), (True, size, end))
                fails(errno.ENXIO, os.lseek, fd, end, os.SEEK_DATA)
                fails(errno.ENXIO, os.lseek, fd, end + 1, os.SEEK_HOLE)
                eq(os.lseek(fd, 0, os.SEEK_END), end)
                eq(os.lseek(fd, 0, os.SEEK_HOLE) in (0, end), True)

    with t.claim("fallocate refuses what is too large, and what the kernel does not know of us"):
        with opened(put("fr", b"abc"), os.O_RDWR) as fd:
            fails(errno.EFBIG, fallocate, fd, 0, MAX, 1)
            fails(errno.EFBIG, fallocate, fd, ZERO_RANGE, 0, MAX + 1)
            fails(errno.EOPNOTSUPP, fallocate, fd, COLLAPSE_RANGE, 0, 4096)
            fails(errno.EOPNOTSUPP, fallocate, fd, INSERT_RANGE, 0, 4096)
        eq(stored("fr"), b"abc")

    with t.claim("copy_file_range copies within a file and between files, large ones too"):
        src = put("cs", text)
        with opened(src, os.O_RDWR) as a, opened(mnt / "cd", os.O_RDWR | os.O_CREAT) as b:
            n = 0
            while got := os.copy_file_range(a, b, 1 << 30):
                n += got
            eq(n, LARGE)
            eq(os.copy_file_range(a, a, 100, 0, LARGE - 50), 100)
            eq(os.copy_file_range(b, b, 100, LARGE - 10, 0), 10)
            eq(os.copy_file_range(a, b, 100, LARGE + 1000, 0), 0)
        same(stored("cs"), text[:-50] + text[:100])
        same(stored("cd"), text[-10:] + text[10:])

    # --- holes ---------------------------------------------------------------------------------------------------------

    with t.claim("a hole of a whole large file takes no memory, and the write past the largest value fails"):
        before = heap(m)
        with opened(mnt / "hole", os.O_RDWR | os.O_CREAT) as fd:
            fails(errno.EFBIG, os.pwrite, fd, b"x", 1 << 40)
            fails(errno.EFBIG, os.pwrite, fd, b"x", MAX)
            fails(errno.EFBIG, os.ftruncate, fd, MAX + 1)
            os.pwrite(fd, b"x", MAX - 1)
            eq(os.pread(fd, 10, MAX - 5), b"\0\0\0\0x")
            eq((heap(m) - before < 20 * MIB) or sanitized(), True, f"{(heap(m) - before) >> 20} MiB")
            os.ftruncate(fd, 3)
            os.ftruncate(fd, 6)
        fails(errno.EFBIG, os.truncate, mnt / "hole", MAX + 1)
        eq(stored("hole"), bytes(6))

    with t.claim("truncate by path grows a small file to a large one and cuts it again"):
        p = put("tp", b"begin")
        os.truncate(p, LARGE)
        eq((p.stat().st_size, stored("tp")[:8], len(stored("tp"))), (LARGE, b"begin\0\0\0", LARGE))
        os.truncate(p, LARGE - 1)
        os.truncate(p, 3)
        eq((stored("tp"), p.read_bytes()), (b"beg", b"beg"))

    # --- large contents ---------------------------------------------------------------------------------------------------

    with t.claim("a large file is written in pieces, changed in the middle, cut and appended to, as another mount sees"):
        want = bytearray(text)
        with opened(mnt / "lg", os.O_RDWR | os.O_CREAT) as fd, opened(mnt / "lg", os.O_RDWR) as fd2:
            for off in range(0, LARGE, 3 * MIB):
                os.pwrite(fd if off % 2 else fd2, text[off:off + 3 * MIB], off)
            os.fsync(fd)
            os.pwrite(fd2, b"MIDDLE", LARGE // 2)
            want[LARGE // 2:LARGE // 2 + 6] = b"MIDDLE"
            eq(os.pread(fd, 6, LARGE // 2), b"MIDDLE")
            os.ftruncate(fd, LARGE - MIB + 7)
            os.pwrite(fd, b"far", LARGE)
            want[LARGE - MIB + 7:] = bytes(MIB - 7) + b"far"
            with opened(mnt / "lg", os.O_WRONLY | os.O_APPEND) as fd3:
                os.write(fd3, b"tail")
            want += b"tail"
            same(os.pread(fd, len(want), 0), bytes(want))
        same(stored("lg"), bytes(want))
        with opened(mnt / "lg", os.O_RDWR) as fd:
            os.pwrite(fd, b"again", 5)
            want[5:10] = b"again"
            same(os.pread(fd, len(want), 0), bytes(want))
        same(stored("lg"), bytes(want))

    with t.claim("a mapping of a large file is written back, after its descriptor was closed too"):
        p = put("mp", text)
        with opened(p, os.O_RDWR) as fd:
            mm = mmap.mmap(fd, LARGE)
        mm[LARGE - 3:] = b"END"
        mm[0:1] = b"!"
        mm.close()
        same(stored("mp"), b"!" + text[1:-3] + b"END")

    with t.claim("a handle that appends may be mapped, and what either does shows in the other (Linux 6.6)"):
        if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 6):
            with opened(put("am", b"0" * 5000), os.O_RDWR | os.O_APPEND) as fd, mmap.mmap(fd, 5000) as mm:
                mm[10:13] = b"map"
                mm.flush()
                os.write(fd, b"end")
                eq(os.pread(fd, 5, 9), b"0map0")
                eq((mm[9:14], os.fstat(fd).st_size), (b"0map0", 5003))
            eq(stored("am"), b"0" * 10 + b"map" + b"0" * 4987 + b"end")

    with t.claim("appends go behind a large file and may be read before they are stored"):
        p = put("ap", text)
        with opened(p, os.O_RDWR | os.O_APPEND) as fd:
            os.write(fd, b"one")
            eq(os.pread(fd, 10, LARGE - 4), text[-4:] + b"one")
            for i in range(10):
                os.write(fd, text[i * MIB:(i + 1) * MIB])
            eq(os.pread(fd, 8, LARGE), b"one" + text[:5])
            os.fsync(fd)
            os.write(fd, b"two")
            eq(os.pread(fd, 9, LARGE + 3 + 10 * MIB - 3), text[10 * MIB - 3:10 * MIB] + b"two")
        same(stored("ap"), text + b"one" + text[:10 * MIB] + b"two")

    with t.claim("reading a part of a large file does not fetch the rest, also through a handle for writing"):
        much = text + text + text
        put("part", much)
        other = c.mount("other")
        for flags in (os.O_RDONLY, os.O_RDWR):
            with opened(other.path / "part", flags) as fd:
                before = read_bytes_of(other)
                eq(os.pread(fd, 1000, 5 * MIB), much[5 * MIB:5 * MIB + 1000])
                eq(os.pread(fd, 1000, 15 * MIB), much[15 * MIB:15 * MIB + 1000])
                n = read_bytes_of(other) - before
                eq(n < 10 * MIB, True, f"{n >> 20} MiB came for 2 KB")

    with t.claim("a large file that another mount replaces meanwhile is not read as a mixture"):
        with opened(other.path / "part", os.O_RDONLY) as fd:
            eq(os.pread(fd, 4, 0), text[:4])
            put("part", pattern(LARGE, seed=9))
            try:
                got = os.pread(fd, 4, LARGE - MIB)
            except OSError as e:
                eq(e.errno, errno.ESTALE)
            else:
                eq(got, text[LARGE - MIB:LARGE - MIB + 4])
        other.stop()

    with t.claim("a large file written while it is being stored is stored as a whole, then with what came later"):
        p = mnt / "busy"
        stop, errors = threading.Event(), []

        def syncer(fd):
            while not stop.is_set():
                try:
                    os.fsync(fd)
                except OSError as e:
                    errors.append(e)

        want = bytearray(text)
        with opened(p, os.O_RDWR | os.O_CREAT) as fd:
            os.pwrite(fd, text, 0)
            thread = threading.Thread(target=syncer, args=(fd,))
            thread.start()
            for i in range(40):
                off = (i * 7919 * 4096) % (LARGE - 100)
                os.pwrite(fd, b"%05d" % i, off)
                want[off:off + 5] = b"%05d" % i
            os.ftruncate(fd, LARGE - 5)
            os.pwrite(fd, b"12345", LARGE - 5)
            want[-5:] = b"12345"
            stop.set()
            thread.join()
        eq(errors, [])
        same(stored("busy"), bytes(want))
        eq((m.log().count("not_stored"), m.log().count("EBADMSG")), (0, 0))

    with t.claim("a large file that is open follows its rename, and lives on when it is unlinked"):
        p = put("mv", text)
        with opened(p, os.O_RDWR) as fd:
            os.pwrite(fd, b"new", 0)
            os.rename(p, mnt / "mv2")
            eq(os.pread(fd, 5, 0), b"new" + text[3:5])
            os.pwrite(fd, b"NEW", 0)
            os.fsync(fd)
            same(stored("mv2"), b"NEW" + text[3:])
            os.unlink(mnt / "mv2")
            eq(os.pread(fd, 4, LARGE - 4), text[-4:])
            os.pwrite(fd, b"still", MIB)
            eq(os.pread(fd, 5, MIB), b"still")
        eq(stored("mv2"), None)

    with t.claim("O_DIRECT reads and writes, beside a cached handle"):
        p = put("dir", text[:MIB])
        page = mmap.mmap(-1, 8192)
        with opened(p, os.O_RDWR | os.O_DIRECT) as d, opened(p, os.O_RDWR) as b:
            eq(os.pread(b, 4, 4096), text[4096:4100])
            page.write(b"D" * 8192)
            eq(os.pwritev(d, [page], 4096), 8192)
            eq(os.pread(b, 8194, 4095), text[4095:4096] + b"D" * 8192 + text[12288:12289])
            os.pwrite(b, b"B" * 10, 5000)
            eq(os.preadv(d, [page], 4096), 8192)
            eq(bytes(page[900:920]), b"D" * 4 + b"B" * 10 + b"D" * 6)
            eq(os.pwritev(d, [page], MIB), 8192)
            eq(os.fstat(b).st_size, MIB + 8192)
        eq(len(stored("dir")), MIB + 8192)

    # --- what fails -----------------------------------------------------------------------------------------------------

    with t.claim("a store that fails leaves the old value, and the next one that succeeds stores what is there"):
        p = put("fs", b"old")
        with opened(p, os.O_RDWR) as fd:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"new contents", 0)
            c.sigstop(1)
            c.sigstop(2)
            try:
                fails(errno.EHOSTDOWN, os.fsync, fd)
                fails(errno.EHOSTDOWN, os.close, os.dup(fd))
            finally:
                c.sigcont(1)
                c.sigcont(2)
            wait_until(lambda: c.http("GET", "/health", node=1).status == 200, 20, "the nodes are back")
            os.pwrite(fd, b"NEW", 0)
            wait_until(lambda: not attempt(os.fsync, fd), 20, "it can be stored")
            eq(stored("fs"), b"NEW contents")

    with t.claim("a full temporary directory fails the write with ENOSPC, and what was written before is kept"):
        small = c.dir / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", small], check=False).returncode == 0:
            try:
                os.environ["TMPDIR"], kept = str(small), os.environ.get("TMPDIR")
                try:
                    tiny = c.mount("tiny")
                finally:
                    os.environ.pop("TMPDIR") if kept is None else os.environ.update(TMPDIR=kept)
                with opened(tiny.path / "full", os.O_RDWR | os.O_CREAT) as fd:
                    n = 0
                    try:
                        while n < 16 * MIB:
                            n += os.pwrite(fd, much[n:n + MIB], n)
                    except OSError as e:
                        eq(e.errno, errno.ENOSPC)
                    eq(8 * MIB <= n < 16 * MIB, True, f"{n} written")
                    same(os.pread(fd, n, 0), much[:n])
                same(stored("full"), much[:n])
                eq(list(small.iterdir()), [])
                tiny.stop()
            finally:
                subprocess.run(["umount", "-l", small], check=False)
        else:
            print("# nothing can be mounted here")
