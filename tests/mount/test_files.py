"""test_files.py - what programs do with files and directories on one mount, as on a local disk."""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, wait_until

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
libc = ctypes.CDLL(None, use_errno=True)


def fails(code, call, *args, **kw):
    """The call must fail with exactly this errno."""
    try:
        call(*args, **kw)
    except OSError as e:
        eq(errno.errorcode.get(e.errno, e.errno), errno.errorcode[code])
    else:
        raise AssertionError(f"{call} did not fail with {errno.errorcode[code]}")


def renameat2(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@contextlib.contextmanager
def opened(path, flags, mode=0o644):
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def stored(key):
    """The bytes the cluster has, None: none."""
    a = c.http("GET", "/kv/" + key, node=2)
    return a.body if a.status == 200 else None


def put(name, data=b""):
    (mnt / name).write_bytes(data)
    return mnt / name


with Claims() as t, Cluster(base_port=18310, config={"max_value_size": 64 << 20}) as c:
    mnt = c.mount().path

    # --- size ---------------------------------------------------------------------------------------------------

    with t.claim("truncate cuts and extends with zeros, by path and by handle"):
        p = put("t", b"0123456789")
        os.truncate(p, 4)
        eq(stored("t"), b"0123")
        os.truncate(p, 7)
        eq(stored("t"), b"0123\0\0\0")
        with opened(p, os.O_RDWR) as fd:
            os.ftruncate(fd, 2)
            eq(os.pread(fd, 10, 0), b"01")
            os.ftruncate(fd, 5)
            eq(os.pread(fd, 10, 0), b"01\0\0\0")
            eq(os.fstat(fd).st_size, 5)
        eq(stored("t"), b"01\0\0\0")
        os.truncate(p, 0)
        eq((stored("t"), os.stat(p).st_size), (b"", 0))

    with t.claim("what lies between a write and the old end reads as zeros"):
        with opened(mnt / "sparse", os.O_RDWR | os.O_CREAT) as fd:
            os.pwrite(fd, b"end", 100000)
            eq(os.fstat(fd).st_size, 100003)
            eq(os.pread(fd, 100, 99950), b"\0" * 50 + b"end")
            eq(os.lseek(fd, 0, os.SEEK_END), 100003)
        eq(stored("sparse"), b"\0" * 100000 + b"end")

    with t.claim("a write in the middle of an existing file changes just that"):
        p = put("mid", b"x" * 300000)
        with opened(p, os.O_WRONLY) as fd:
            os.pwrite(fd, b"ABC", 150000)
        eq(p.read_bytes(), b"x" * 150000 + b"ABC" + b"x" * 149997)

    with t.claim("a write or truncate past the largest value is EFBIG, and allocates nothing"):
        with opened(mnt / "huge", os.O_RDWR | os.O_CREAT) as fd:
            fails(errno.EFBIG, os.pwrite, fd, b"x", 1 << 40)
            fails(errno.EFBIG, os.ftruncate, fd, 1 << 40)
            fails(errno.EFBIG, os.pwrite, fd, b"x", 64 << 20)
            eq(os.pwrite(fd, b"x", (64 << 20) - 1), 1)
            os.ftruncate(fd, 3)
        fails(errno.EFBIG, os.truncate, mnt / "huge", (64 << 20) + 1)
        eq(stored("huge"), b"\0\0\0")

    with t.claim("fallocate extends, and refuses what it cannot do"):
        p = put("falloc", b"abc")
        with opened(p, os.O_RDWR) as fd:
            os.posix_fallocate(fd, 0, 10)
            eq(os.fstat(fd).st_size, 10)
            eq(libc.fallocate(fd, 8, ctypes.c_long(0), ctypes.c_long(2)), -1)  # COLLAPSE_RANGE
            eq(ctypes.get_errno(), errno.EOPNOTSUPP)
        eq(stored("falloc"), b"abc" + b"\0" * 7)

    # --- handles ------------------------------------------------------------------------------------------------

    with t.claim("O_TRUNC empties, and nobody sees the old or a half file at the close"):
        p = put("trunc", b"old contents")
        with opened(p, os.O_WRONLY | os.O_TRUNC) as fd:
            eq(os.fstat(fd).st_size, 0)
            os.write(fd, b"new")
            eq(stored("trunc"), b"old contents")
        eq(stored("trunc"), b"new")

    with t.claim("`> file` of a shell is stored once, with what is written, and alone as well"):
        subprocess.run(["bash", "-c", "echo one > sh; : > empty; echo two >> sh"], cwd=mnt, check=True)
        eq((stored("sh"), stored("empty")), (b"one\ntwo\n", b""))

    with t.claim("all handles of a file share one view"):
        p = put("share", b"aaaa")
        with opened(p, os.O_RDWR) as a, opened(p, os.O_RDWR) as b:
            os.pwrite(a, b"ZZ", 1)
            eq(os.pread(b, 10, 0), b"aZZa")
            os.pwrite(b, b"tail", 4)
            eq(os.pread(a, 10, 0), b"aZZatail")
            eq(os.stat(p).st_size, 8)
            with opened(p, os.O_RDONLY) as d:
                eq(os.read(d, 100), b"aZZatail")
        eq(stored("share"), b"aZZatail")

    with t.claim("a duplicated descriptor stores at each close"):
        with opened(mnt / "dup", os.O_WRONLY | os.O_CREAT) as fd:
            os.write(fd, b"one ")
            os.close(os.dup(fd))
            eq(stored("dup"), b"one ")
            os.write(fd, b"two")
        eq(stored("dup"), b"one two")

    with t.claim("fsync stores while the file stays open"):
        with opened(mnt / "sync", os.O_WRONLY | os.O_CREAT) as fd:
            os.write(fd, b"durable")
            os.fsync(fd)
            eq(stored("sync"), b"durable")

    with t.claim("appends stand one behind the other, whichever handle wrote them, between reads"):
        p = put("app", b"0")
        with opened(p, os.O_RDWR | os.O_APPEND) as a, opened(p, os.O_WRONLY | os.O_APPEND) as b:
            os.write(a, b"1")
            os.write(b, b"2")
            eq(os.pread(a, 10, 0), b"012")
            os.write(a, b"3")
            eq(os.fstat(b).st_size, 4)
        eq(stored("app"), b"0123")

    with t.claim("an append to what another client appended meanwhile loses nothing"):
        p = put("app2", b"a")
        with opened(p, os.O_WRONLY | os.O_APPEND) as fd:
            eq(c.http("POST", "/kv/app2?append", b"b").status in (200, 201), True)
            os.write(fd, b"c")
        eq(p.read_bytes(), b"abc")

    with t.claim("an unlinked file works to its last close, and nothing is left behind"):
        for size in (5, 3 << 20):
            p = put("unl", b"u" * size)
            fd = os.open(p, os.O_RDWR)
            eq(len(os.pread(fd, 2, 0)), 2)
            os.unlink(p)
            fails(errno.ENOENT, os.stat, p)
            eq(os.fstat(fd).st_nlink, 0)
            eq(os.pread(fd, 10, size - 3), b"uuu")
            os.pwrite(fd, b"new", 0)
            eq(os.pread(fd, 4, 0), b"newu")
            os.fsync(fd)
            os.close(fd)
            eq((stored("unl"), os.path.exists(p)), (None, False))

    with t.claim("a file created anew where one was unlinked is another file"):
        p = put("re", b"old")
        with opened(p, os.O_RDWR) as fd:
            os.unlink(p)
            put("re", b"fresh")
            eq(os.pread(fd, 10, 0), b"old")
            os.pwrite(fd, b"OLD", 0)
        eq(p.read_bytes(), b"fresh")

    with t.claim("a mapping is read and written"):
        p = put("map", b"m" * 10000)
        with opened(p, os.O_RDWR) as fd, mmap.mmap(fd, 10000) as m:
            eq(m[9990:], b"m" * 10)
            m[5000:5003] = b"XYZ"
            m.flush()
        eq(p.read_bytes()[4999:5004], b"mXYZm")
        with opened(p, os.O_RDWR) as fd:
            m = mmap.mmap(fd, 10000)
        m[0:1] = b"!"
        m.close()
        eq(p.read_bytes()[:2], b"!m")

    with t.claim("a new file shows before its first close, in its directory too"):
        with opened(mnt / "early", os.O_WRONLY | os.O_CREAT) as fd:
            eq("early" in os.listdir(mnt), True)
            os.write(fd, b"12345")
            eq(os.stat(mnt / "early").st_size, 5)
            fails(errno.EEXIST, os.open, mnt / "early", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        eq(stored("early"), b"12345")

    with t.claim("O_EXCL has one winner among many threads"):
        for i in range(10):
            won = []

            def attempt(i=i, won=won):
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(mnt / f"excl{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                    won.append(1)

            threads = [threading.Thread(target=attempt) for _ in range(4)]
            for th in threads:
                th.start()
            for th in threads:
                th.join()
            eq(len(won), 1)

    with t.claim("what a program wrote is stored when it is killed, once"):
        for sig, n in ((signal.SIGINT, 12), (signal.SIGKILL, 12)):
            for i in range(n):
                # By default a signal kills; python's own handler may have to wait for a sleep that was just about to begin.
                program = ("import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); f = open('killed', 'ab', 0); "
                           f"f.write(b'{i}\\n'); print(1, flush=True); time.sleep(60)")
                p = subprocess.Popen([sys.executable, "-c", program], cwd=mnt, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                eq(p.stdout.readline(), b"1\n")
                p.send_signal(sig)
                p.wait(10)
                p.stdout.close()
                wait_until(lambda i=i: (stored("killed") or b"").endswith(b"%d\n" % i), 10, "it is stored")
            eq(stored("killed").split(), [b"%d" % i for i in range(n)])
            os.unlink(mnt / "killed")

    with t.claim("copy_file_range, sendfile and flock work"):
        p = put("cfr", b"c" * 100000)
        shutil.copyfile(p, mnt / "cfr2")
        with opened(p, os.O_RDONLY) as a, opened(mnt / "cfr3", os.O_WRONLY | os.O_CREAT) as b:
            fcntl.flock(a, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):
                eq(os.copy_file_range(a, b, 100000), 100000)
        eq((mnt / "cfr2").read_bytes(), b"c" * 100000)
        eq((mnt / "cfr3").stat().st_size, 100000)

    # --- attributes -----------------------------------------------------------------------------------------------

    with t.claim("mode, owner and times are kept, to the nanosecond"):
        p = put("attr", b"x")
        os.chown(p, 1234, 4321)
        os.chmod(p, 0o4750)
        os.utime(p, ns=(1_500_000_000_123_456_789, 1_400_000_000_987_654_321))
        st = os.stat(p)
        eq((oct(st.st_mode), st.st_uid, st.st_gid), (oct(0o104750), 1234, 4321))
        eq((st.st_atime_ns, st.st_mtime_ns), (1_500_000_000_123_456_789, 1_400_000_000_987_654_321))
        with opened(p, os.O_WRONLY) as fd:
            os.write(fd, b"y")
            os.fchmod(fd, 0o600)
            os.utime(fd, ns=(5, 6))
        st = os.stat(p)
        eq((oct(st.st_mode), st.st_uid, st.st_mtime_ns, p.read_bytes()), (oct(0o100600), 1234, 6, b"y"))

    with t.claim("a write moves mtime, a new file belongs to its maker"):
        p = put("mtime", b"1")
        os.utime(p, ns=(1000, 1000))
        put("mtime", b"2")
        eq(os.stat(p).st_mtime_ns > 10**18, True)
        eq((os.stat(p).st_uid, os.stat(p).st_gid), (os.getuid(), os.getgid()))

    with t.claim("umask and mode of a new file and directory count"):
        old = os.umask(0o027)
        try:
            os.close(os.open(mnt / "um", os.O_CREAT | os.O_WRONLY, 0o666))
            os.mkdir(mnt / "umd", 0o777)
        finally:
            os.umask(old)
        eq((oct(os.stat(mnt / "um").st_mode), oct(os.stat(mnt / "umd").st_mode)), (oct(0o100640), oct(0o040750)))

    with t.claim("a setgid directory hands its group down"):
        os.mkdir(mnt / "sg")
        os.chown(mnt / "sg", -1, 77)
        os.chmod(mnt / "sg", 0o2775)
        put("sg/f")
        os.mkdir(mnt / "sg/d")
        eq((os.stat(mnt / "sg/f").st_gid, os.stat(mnt / "sg/d").st_gid), (77, 77))
        eq(os.stat(mnt / "sg/d").st_mode & stat.S_ISGID, stat.S_ISGID)

    with t.claim("st_ino is the same for every mount and in listings, and stays through a rename"):
        put("ino")
        c.http("PUT", "/kv/ino-http", b"")
        a = os.stat(mnt / "ino").st_ino
        eq({e.name: e.inode() for e in os.scandir(mnt)}["ino"], a)
        os.rename(mnt / "ino", mnt / "ino2")
        eq(os.stat(mnt / "ino2").st_ino, a)
        put("ino")
        eq(os.stat(mnt / "ino").st_ino != a, True)
        other = c.mount("other")
        for name in ("ino", "ino2", "ino-http", "sg"):
            eq(os.stat(other.path / name).st_ino, os.stat(mnt / name).st_ino, name)
        other.stop()

    with t.claim("symlinks, also dangling and long ones"):
        put("target", b"t")
        os.symlink("target", mnt / "link")
        os.symlink("nowhere", mnt / "dangling")
        os.symlink("x" * 1023, mnt / "long")
        eq((mnt / "link").read_bytes(), b"t")
        eq((os.readlink(mnt / "dangling"), os.readlink(mnt / "long")), ("nowhere", "x" * 1023))
        eq(stat.S_ISLNK(os.lstat(mnt / "link").st_mode), True)
        eq(os.lstat(mnt / "link").st_size, 6)
        fails(errno.ENOENT, os.stat, mnt / "dangling")
        fails(errno.EEXIST, os.symlink, "z", mnt / "link")

    with t.claim("FIFOs, sockets and devices keep their kind"):
        os.mkfifo(mnt / "fifo")
        os.mknod(mnt / "sock", stat.S_IFSOCK | 0o600)
        kinds = [stat.S_ISFIFO(os.stat(mnt / "fifo").st_mode), stat.S_ISSOCK(os.stat(mnt / "sock").st_mode)]
        if os.getuid() == 0:
            os.mknod(mnt / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            kinds.append(os.stat(mnt / "null").st_rdev == os.makedev(1, 3))
        eq(all(kinds), True)
        reader = subprocess.Popen(["cat", mnt / "fifo"], stdout=subprocess.PIPE)
        (mnt / "fifo").write_bytes(b"through")
        eq(reader.communicate(timeout=10)[0], b"through")

    with t.claim("hard links are refused"):
        fails(errno.EPERM, os.link, mnt / "target", mnt / "hard")

    with t.claim("user attributes are set, read, listed, replaced and removed"):
        p = put("xa", b"x")
        os.setxattr(p, "user.one", b"1")
        os.setxattr(p, "user.two", b"\0\xff" * 1000)
        eq((os.getxattr(p, "user.one"), len(os.getxattr(p, "user.two"))), (b"1", 2000))
        eq(sorted(os.listxattr(p)), ["user.one", "user.two"])
        fails(errno.EEXIST, os.setxattr, p, "user.one", b"", os.XATTR_CREATE)
        fails(errno.ENODATA, os.setxattr, p, "user.three", b"", os.XATTR_REPLACE)
        p.write_bytes(b"changed")
        os.rename(p, mnt / "xb")
        os.removexattr(mnt / "xb", "user.two")
        eq(os.listxattr(mnt / "xb"), ["user.one"])
        fails(errno.ENODATA, os.getxattr, mnt / "xb", "user.two")
        fails(errno.EOPNOTSUPP, os.setxattr, mnt / "xb", "trusted.x", b"")
        os.mkdir(mnt / "xd")
        os.setxattr(mnt / "xd", "user.d", b"dir")
        eq(os.getxattr(mnt / "xd", "user.d"), b"dir")

    # --- directories ------------------------------------------------------------------------------------------------

    with t.claim("mkdir and rmdir give the errors that programs know"):
        os.mkdir(mnt / "d")
        fails(errno.EEXIST, os.mkdir, mnt / "d")
        put("d/f")
        fails(errno.EEXIST, os.mkdir, mnt / "d/f")
        fails(errno.ENOTEMPTY, os.rmdir, mnt / "d")
        fails(errno.ENOTDIR, os.rmdir, mnt / "d/f")
        fails(errno.ENOENT, os.rmdir, mnt / "none")
        fails(errno.EISDIR, os.unlink, mnt / "d")
        fails(errno.ENOENT, os.unlink, mnt / "d/none")
        fails(errno.ENOENT, put, "none/f")
        os.unlink(mnt / "d/f")
        eq(os.listdir(mnt / "d"), [])
        os.rmdir(mnt / "d")
        fails(errno.ENOENT, os.listdir, mnt / "d")

    with t.claim("a directory that exists only through keys stays when its last file is removed here"):
        eq(c.http("PUT", "/kv/implicit/deep/file", b"x").status, 201)
        os.unlink(mnt / "implicit/deep/file")
        eq((os.listdir(mnt / "implicit/deep"), os.listdir(mnt / "implicit")), ([], ["deep"]))
        os.rmdir(mnt / "implicit/deep")
        os.rmdir(mnt / "implicit")
        eq(os.path.exists(mnt / "implicit"), False)

    with t.claim("nothing is created in a directory that was removed"):
        os.mkdir(mnt / "gone")
        with opened(mnt / "gone", os.O_DIRECTORY) as fd:
            os.rmdir(mnt / "gone")
            fails(errno.ENOENT, os.open, "f", os.O_CREAT | os.O_WRONLY, dir_fd=fd)

    with t.claim("a directory of 2,500 entries lists each once, while half of it is removed"):
        os.mkdir(mnt / "many")
        names = {f"n{i:04}" for i in range(2500)}
        for i in range(2500):
            c.http("PUT", f"/kv/many/n{i:04}", b"", conn=globals().setdefault("conn", __import__("kvtest").connect(c.port(1))))
        seen = []
        with os.scandir(mnt / "many") as entries:
            for k, e in enumerate(entries):
                seen.append(e.name)
                if k % 2 == 0 and k < 400:
                    os.unlink(e.path)
        eq((len(seen), set(seen)), (2500, names))
        eq(len(os.listdir(mnt / "many")), 2300)
        subprocess.run(["rm", "-r", mnt / "many"], check=True, timeout=60)
        eq(os.path.exists(mnt / "many"), False)

    # --- rename --------------------------------------------------------------------------------------------------------

    with t.claim("rename replaces a file; the replaced one goes on for who has it open"):
        put("r1", b"one")
        p = put("r2", b"two")
        with opened(p, os.O_RDONLY) as fd:
            os.rename(mnt / "r1", p)
            eq(os.pread(fd, 10, 0), b"two")
        eq((p.read_bytes(), os.path.exists(mnt / "r1")), (b"one", False))
        eq((stored("r1"), stored("r2")), (None, b"one"))

    with t.claim("no reader of a file that is replaced by rename ever misses it"):
        p = put("at", b"v")
        stop, bad = threading.Event(), []

        def look():
            while not stop.is_set():
                try:
                    bad.extend([] if p.read_bytes()[:1] == b"v" else ["contents"])
                except OSError as e:
                    bad.append(e)

        reader = threading.Thread(target=look)
        reader.start()
        for i in range(60):
            put("at.new", b"v%d" % i)
            os.rename(mnt / "at.new", p)
        stop.set()
        reader.join()
        eq(bad, [])

    with t.claim("RENAME_NOREPLACE keeps what is there, RENAME_EXCHANGE is refused"):
        put("n1", b"1")
        put("n2", b"2")
        fails(errno.EEXIST, renameat2, mnt / "n1", mnt / "n2", RENAME_NOREPLACE)
        renameat2(mnt / "n1", mnt / "n3", RENAME_NOREPLACE)
        eq(((mnt / "n3").read_bytes(), (mnt / "n2").read_bytes()), (b"1", b"2"))
        fails(errno.EINVAL, renameat2, mnt / "n3", mnt / "n2", RENAME_EXCHANGE)

    with t.claim("an open file follows its rename, with what is not stored yet"):
        with opened(mnt / "f1", os.O_RDWR | os.O_CREAT) as fd:
            os.write(fd, b"first ")
            os.rename(mnt / "f1", mnt / "f2")
            os.write(fd, b"second")
            eq(os.pread(fd, 20, 0), b"first second")
        eq((stored("f1"), stored("f2")), (None, b"first second"))

    with t.claim("a directory is renamed with open files and all below, and onto an empty one"):
        os.makedirs(mnt / "rd/x/y")
        for i in range(40):
            put(f"rd/x/y/f{i}", b"%d" % i)
        os.mkdir(mnt / "re2")
        with opened(mnt / "rd/x/y/f7", os.O_RDWR | os.O_APPEND) as fd, opened(mnt / "rd/x/new", os.O_WRONLY | os.O_CREAT) as fd2:
            os.write(fd2, b"before ")
            os.rename(mnt / "rd", mnt / "re2")
            os.write(fd, b"+")
            os.write(fd2, b"after")
        eq(sorted(os.listdir(mnt / "re2/x/y")), sorted(f"f{i}" for i in range(40)))
        eq(((mnt / "re2/x/y/f7").read_bytes(), (mnt / "re2/x/new").read_bytes()), (b"7+", b"before after"))
        eq((os.path.exists(mnt / "rd"), c.http("GET", "/kv?prefix=rd/").json()["keys"]), (False, []))

    with t.claim("rename refuses what cannot be"):
        os.makedirs(mnt / "ra/sub")
        put("rb/f") if (mnt / "rb").mkdir() is None else None
        fails(errno.EINVAL, os.rename, mnt / "ra", mnt / "ra/sub/in")
        fails(errno.ENOTEMPTY, os.rename, mnt / "ra", mnt / "rb")
        fails(errno.EISDIR, os.rename, mnt / "rb/f", mnt / "ra")
        fails(errno.ENOTDIR, os.rename, mnt / "ra", mnt / "rb/f")
        fails(errno.ENOENT, os.rename, mnt / "none", mnt / "rb/f")
        os.rename(mnt / "rb/f", mnt / "rb/f")
        eq(os.listdir(mnt / "rb"), ["f"])
