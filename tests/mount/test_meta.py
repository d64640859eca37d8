"""test_meta.py - owners, modes, times, attributes and identity of files, for several users and through two mounts."""
import contextlib
import errno
import os
import pathlib
import pickle
import socket
import stat
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, soon, wait_until

USER, GROUP, OTHER = 4001, 4002, 4003
SUID, SGID = stat.S_ISUID, stat.S_ISGID
YEAR_S = 31_556_952
NS = 10**9


# --- helpers ------------------------------------------------------------------------------------------------------


def fails(code, call, *args, **kw):
    """The call must fail with exactly this errno."""
    try:
        call(*args, **kw)
    except OSError as e:
        eq(errno.errorcode.get(e.errno, e.errno), errno.errorcode[code])
    else:
        raise AssertionError(f"{call} did not fail with {errno.errorcode[code]}")


def as_user(call, uid=USER, gid=GROUP, groups=()):
    """Runs call() in a process of that user, in the mount's root; gives back what it returned or raised."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.chdir(mnt)
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        try:
            out = (True, call())
        except BaseException as e:
            out = (False, e)
        os.write(w, pickle.dumps(out))
        os._exit(0)
    os.close(w)
    with open(r, "rb") as f:
        done, out = pickle.load(f)
    os.waitpid(pid, 0)
    if not done:
        raise out
    return out


@contextlib.contextmanager
def opened(path, flags, mode=0o644):
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def put(name, data=b"x", mode=0o644, owner=(0, 0), at=None):
    """A file with all that; its path."""
    p = (at or mnt) / name
    p.write_bytes(data)
    os.chown(p, *owner)
    os.chmod(p, mode)
    return p


def mkdir(name, mode=0o755, owner=(0, 0)):
    os.mkdir(mnt / name)
    os.chown(mnt / name, *owner)
    os.chmod(mnt / name, mode)
    return mnt / name


def mode(path):
    return oct(stat.S_IMODE(os.lstat(path).st_mode))


def write_to(name, flags):
    """As a function for as_user()."""

    def call():
        with opened(name, flags) as fd:
            os.write(fd, b"y")

    return call


def with_fd(name, call):
    with opened(name, os.O_RDWR) as fd:
        call(fd)


def changes(path, *fields):
    """A context in which these times of path must move on, and be close to now."""

    @contextlib.contextmanager
    def check():
        before = os.lstat(path)
        time.clock_gettime_ns(time.CLOCK_REALTIME)
        yield
        now, after = time.time_ns(), os.lstat(path)
        for f in fields:
            eq(getattr(before, f) < getattr(after, f) <= now + NS, True,
               f"{f} of {path.name}: before {getattr(before, f)}, after {getattr(after, f)}, now {now}")

    return check()


# --- the claims ---------------------------------------------------------------------------------------------------


def privileges():
    with t.claim("a write, append or truncate by another user takes the set-user-ID bit, and set-group-ID of a program"):
        for what, call in {
            "write": write_to("suid", os.O_WRONLY),
            "append": write_to("suid", os.O_WRONLY | os.O_APPEND),
            "truncate": lambda: os.truncate("suid", 0),
            "O_TRUNC": lambda: os.close(os.open("suid", os.O_WRONLY | os.O_TRUNC)),
            "same size": lambda: os.truncate("suid", 1),
            "fallocate": lambda: with_fd("suid", lambda fd: os.posix_fallocate(fd, 0, 9)),
            "copy_file_range": lambda: with_fd("suid", lambda fd: os.copy_file_range(fd, fd, 1, 0, 1)),
        }.items():
            p = put("suid", mode=0o6777)
            as_user(call)
            eq(mode(p), oct(0o777), what)
            eq(mode(other.path / "suid"), oct(0o777), f"{what}, in the other mount")

    with t.claim("set-group-ID of what no group may run stays"):
        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_APPEND):
            p = put("sgid", mode=0o2766, owner=(0, GROUP))
            as_user(write_to("sgid", flags))
            eq(mode(p), oct(0o2766))

    with t.claim("a write by root leaves both"):
        p = put("rootly", mode=0o6755)
        write_to(p, os.O_WRONLY)()
        write_to(p, os.O_WRONLY | os.O_APPEND)()
        eq(mode(p), oct(0o6755))

    with t.claim("they go also by a write through a descriptor that was open before they were set"):
        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_APPEND):
            p = put("late", mode=0o666)

            def late():
                with opened("late", flags) as fd:
                    os.write(fd, b"1")
                    subprocess.run(["true"], check=True)
                    os.kill(os.getppid(), 0) if os.getuid() == 0 else None
                    set_now.write(b"x")
                    set_now.flush()
                    go_on.read(1)
                    os.write(fd, b"2")

            r1, w1 = os.pipe()
            r2, w2 = os.pipe()
            set_now, go_on = os.fdopen(w1, "wb"), os.fdopen(r2, "rb")
            pid = os.fork()
            if pid == 0:
                os.read(r1, 1)
                os.chmod(p, 0o6777)
                os.write(w2, b"x")
                os._exit(0)
            as_user(late)
            os.waitpid(pid, 0)
            set_now.close()
            go_on.close()
            os.close(r1)
            os.close(w2)
            eq(mode(p), oct(0o777))

    with t.claim("they go when the owner changes, by whoever, and not from directories"):
        p = put("chown", mode=0o6755)
        os.chown(p, USER, GROUP)
        eq(mode(p), oct(0o755))
        os.chmod(p, 0o6755)
        as_user(lambda: os.chown("chown", -1, OTHER), groups=[OTHER])
        eq((mode(p), os.stat(p).st_gid), (oct(0o755), OTHER))
        d = mkdir("chown-dir", 0o6755)
        os.chown(d, USER, GROUP)
        eq(mode(d), oct(0o6755))

    with t.claim("only the owner and root change mode, owner and times; who may write may set them to now"):
        put("mine", mode=0o666)
        fails(errno.EPERM, as_user, lambda: os.chmod("mine", 0o777))
        fails(errno.EPERM, as_user, lambda: os.chown("mine", USER, GROUP))
        fails(errno.EPERM, as_user, lambda: os.utime("mine", ns=(1, 1)))
        with changes(mnt / "mine", "st_mtime_ns", "st_ctime_ns"):
            as_user(lambda: os.utime("mine"))
        os.chmod(mnt / "mine", 0o644)
        fails(errno.EACCES, as_user, lambda: os.utime("mine"))
        fails(errno.EACCES, as_user, write_to("mine", os.O_WRONLY))


def directories():
    with t.claim("what is made belongs to who made it"):
        d = mkdir("open", 0o777)

        def make():
            os.umask(0o027)
            os.close(os.open("open/f", os.O_CREAT | os.O_WRONLY, 0o666))
            os.close(os.open("open/x", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o777))
            os.mkdir("open/d")
            os.mkfifo("open/p")
            os.symlink("nowhere", "open/l")

        as_user(make)
        for m in (mnt, other.path):
            for name in "fxdpl":
                st = os.lstat(m / "open" / name)
                eq((st.st_uid, st.st_gid), (USER, GROUP), name)
        eq([mode(d / n) for n in "fxdp"], [oct(0o640), oct(0o750), oct(0o750), oct(0o640)])

    with t.claim("in a setgid directory all gets its group, and directories are setgid; so in the root"):
        d = mkdir("setgid", 0o2777, (0, OTHER))
        old = mnt.stat()

        def make(at):
            def call():
                os.close(os.open(f"{at}f-sg", os.O_CREAT | os.O_WRONLY, 0o666))
                os.mkdir(f"{at}d-sg", 0o755)
                os.mkdir(f"{at}d-sg/e", 0o755)
                os.mkfifo(f"{at}p-sg")
                os.symlink("nowhere", f"{at}l-sg")

            return call

        def check(d):
            for name in ("f-sg", "d-sg", "d-sg/e", "p-sg", "l-sg"):
                eq(os.lstat(d / name).st_gid, OTHER, name)
            eq((mode(d / "d-sg"), mode(d / "d-sg/e"), mode(d / "f-sg")), (oct(0o2755), oct(0o2755), oct(0o644)))

        as_user(make("setgid/"))
        check(d)
        try:
            os.chown(mnt, 0, OTHER)
            os.chmod(mnt, 0o2777)
            as_user(make(""))
            check(mnt)
        finally:
            os.chown(mnt, old.st_uid, old.st_gid)
            os.chmod(mnt, stat.S_IMODE(old.st_mode))

    with t.claim("a directory made setgid through one mount hands its group down in the other"):
        mkdir("sg2", 0o777)
        os.stat(other.path / "sg2")
        os.chown(mnt / "sg2", 0, OTHER)
        os.chmod(mnt / "sg2", 0o2777)
        os.mkdir(other.path / "sg2/d")
        eq((os.stat(mnt / "sg2/d").st_gid, mode(mnt / "sg2/d")), (OTHER, oct(0o2755)))

    with t.claim("a file of a group that its maker is not in is made without set-group-ID"):
        as_user(lambda: os.close(os.open("setgid/prog", os.O_CREAT | os.O_WRONLY, 0o2755)))
        eq(mode(mnt / "setgid/prog"), oct(0o755))

    with t.claim("in a sticky directory only the owner of a name removes, renames or replaces it"):
        mkdir("sticky", 0o1777)
        as_user(lambda: pathlib.Path("sticky/his").write_bytes(b"1"), uid=OTHER)
        as_user(lambda: pathlib.Path("sticky/mine").write_bytes(b"2"))
        fails(errno.EPERM, as_user, lambda: os.unlink("sticky/his"))
        fails(errno.EPERM, as_user, lambda: os.rename("sticky/his", "sticky/x"))
        fails(errno.EPERM, as_user, lambda: os.rename("sticky/mine", "sticky/his"))
        as_user(lambda: os.rename("sticky/mine", "sticky/mine2"))
        as_user(lambda: os.unlink("sticky/mine2"))
        as_user(lambda: os.unlink("sticky/his"), uid=OTHER)


def times():
    with t.claim("chmod of a file that was written and not closed leaves it the time of the write"):
        for what, change in {
            "chmod": lambda fd, p: os.fchmod(fd, 0o600),
            "chown": lambda fd, p: os.fchown(fd, 1, 1),
            "by path": lambda fd, p: os.chmod(p, 0o600),
            "atime": lambda fd, p: subprocess.run(["touch", "-a", p], check=True),
            "setxattr": lambda fd, p: os.setxattr(p, "user.a", b"b"),
        }.items():
            p = put("written", b"old")
            os.utime(p, ns=(NS, NS))
            with opened(p, os.O_WRONLY) as fd:
                os.write(fd, b"new")
                change(fd, p)
                eq(os.stat(p).st_mtime_ns > NS, True, f"{what}, open")
            eq(os.stat(p).st_mtime_ns > NS, True, what)
            eq(os.stat(other.path / "written").st_mtime_ns > NS, True, f"{what}, elsewhere")

    with t.claim("a time that was set stays when what was written before is stored"):
        p = put("set", b"old")
        with opened(p, os.O_WRONLY) as fd:
            os.write(fd, b"new")
            os.utime(fd, ns=(3, 4))
            os.fchmod(fd, 0o640)
        eq((os.stat(p).st_atime_ns, os.stat(p).st_mtime_ns), (3, 4))

    with t.claim("each change of a file moves its ctime; a change of its contents its mtime too"):
        p = put("ctime")
        mc = ("st_mtime_ns", "st_ctime_ns")
        for call, fields in [
            (lambda: os.chmod(p, 0o600), mc[1:]),
            (lambda: os.chown(p, 5, 5), mc[1:]),
            (lambda: os.utime(p, ns=(1, 1)), mc[1:]),
            (lambda: os.setxattr(p, "user.c", b"1"), mc[1:]),
            (lambda: os.removexattr(p, "user.c"), mc[1:]),
            (lambda: os.truncate(p, 0), mc),
            (lambda: os.truncate(p, 0), mc),
            (lambda: write_to(p, os.O_WRONLY)(), mc),
            (lambda: write_to(p, os.O_WRONLY | os.O_APPEND)(), mc),
            (lambda: os.close(os.open(p, os.O_WRONLY | os.O_TRUNC)), mc),
            (lambda: os.close(os.open(p, os.O_WRONLY | os.O_TRUNC)), mc),
        ]:
            with changes(p, *fields):
                call()
        before = os.stat(p).st_ctime_ns
        os.rename(p, mnt / "ctime2")
        eq(os.stat(mnt / "ctime2").st_ctime_ns > before, True)

    with t.claim("what is not changed keeps its times"):
        p = put("still")
        before = os.stat(p)
        p.read_bytes()
        os.close(os.open(p, os.O_RDWR))
        with opened(p, os.O_RDWR) as fd:
            os.write(fd, b"")
        fails(errno.EEXIST, os.mkdir, p)
        after = os.stat(p)
        eq((after.st_atime_ns, after.st_mtime_ns, after.st_ctime_ns),
           (before.st_atime_ns, before.st_mtime_ns, before.st_ctime_ns))

    with t.claim("each name made, removed or moved in a directory moves its mtime and ctime"):
        d, e = mkdir("names"), mkdir("names2")
        for call, dirs in [
            (lambda: (d / "f").write_bytes(b""), [d]),
            (lambda: os.mkdir(d / "d"), [d]),
            (lambda: os.symlink("x", d / "l"), [d]),
            (lambda: os.mkfifo(d / "p"), [d]),
            (lambda: os.rename(d / "f", d / "g"), [d]),
            (lambda: os.rename(d / "g", e / "g"), [d, e]),
            (lambda: os.rename(d / "d", e / "d"), [d, e]),
            (lambda: os.unlink(d / "l"), [d]),
            (lambda: os.rmdir(e / "d"), [e]),
        ]:
            with contextlib.ExitStack() as stack:
                for each in dirs:
                    stack.enter_context(changes(each, "st_mtime_ns", "st_ctime_ns"))
                call()
        with changes(d, "st_ctime_ns"):
            os.chmod(d, 0o700)
        before = os.stat(d)
        (d / "p").stat()
        os.listdir(d)
        eq((os.stat(d).st_mtime_ns, os.stat(d).st_ctime_ns), (before.st_mtime_ns, before.st_ctime_ns))

    with t.claim("chmod of a directory leaves its mtime, and a time set stays"):
        d = mkdir("dtimes")
        (d / "f").write_bytes(b"")
        before = os.stat(d).st_mtime_ns
        os.chmod(d, 0o700)
        eq(os.stat(d).st_mtime_ns, before)
        os.utime(d, ns=(7, 8))
        eq((os.stat(d).st_atime_ns, os.stat(d).st_mtime_ns), (7, 8))
        os.chmod(d, 0o755)
        eq((os.stat(d).st_mtime_ns, os.stat(other.path / "dtimes").st_mtime_ns), (8, 8))

    with t.claim("times of 1677 to 2262 are kept to the nanosecond, others are cut to these"):
        p = put("far")
        far_s = 2**63 // NS
        for s in (-1, 0, 2**31, 2**32 + 5, -far_s + 1, far_s - 1):
            os.utime(p, ns=(s * NS + 123_456_789, s * NS + 987_654_321))
            soon(lambda: (os.stat(other.path / "far").st_atime_ns, os.stat(other.path / "far").st_mtime_ns),
                 (s * NS + 123_456_789, s * NS + 987_654_321))
        subprocess.run(["touch", "-m", "-d", "@99999999999", p], check=True)
        eq(os.stat(p).st_mtime_ns // NS // YEAR_S, 2262 - 1970)
        subprocess.run(["touch", "-m", "-d", "@-99999999999", p], check=True)
        eq(-os.stat(p).st_mtime_ns // NS // YEAR_S, 1970 - 1678)

    with t.claim("touch, and utimensat with UTIME_OMIT, change just what they are to"):
        p = put("touch")
        os.utime(p, ns=(5 * NS, 6 * NS))
        subprocess.run(["touch", "-a", "-d", "2001-02-03 04:05:06.789012345 UTC", p], check=True)
        st = os.stat(p)
        eq((st.st_atime_ns, st.st_mtime_ns), (981_173_106_789_012_345, 6 * NS))
        with changes(p, "st_mtime_ns"):
            subprocess.run(["touch", "-m", p], check=True)
        eq(os.stat(p).st_atime_ns, 981_173_106_789_012_345)
        os.symlink("nowhere", mnt / "touched-link")
        os.utime(mnt / "touched-link", ns=(9, 10), follow_symlinks=False)
        eq(os.lstat(mnt / "touched-link").st_mtime_ns, 10)


def attributes():
    with t.claim("extended attributes have the limits of Linux: 255 bytes of name, 64 KiB, and the record's 128 KiB in all"):
        p = put("xattr")
        longest = "user." + "n" * 250
        os.setxattr(p, longest, b"v" * 65536)
        eq(os.getxattr(other.path / "xattr", longest), b"v" * 65536)
        fails(errno.ERANGE, os.setxattr, p, longest + "n", b"")
        fails(errno.E2BIG, os.setxattr, p, "user.big", b"v" * 65537)
        os.setxattr(p, "user.more", b"w" * 60000)
        fails(errno.ENOSPC, os.setxattr, p, "user.toomuch", b"u" * 10000)
        eq((os.getxattr(p, longest), os.getxattr(p, "user.more")), (b"v" * 65536, b"w" * 60000))
        os.removexattr(p, longest)
        os.setxattr(p, "user.toomuch", b"u" * 10000)
        fails(errno.EINVAL, os.setxattr, p, "user.", b"")

    with t.claim("an empty attribute is one, and a replaced one is replaced"):
        p = put("xattr-empty")
        os.setxattr(p, "user.e", b"")
        eq((os.getxattr(p, "user.e"), os.listxattr(p)), (b"", ["user.e"]))
        os.setxattr(p, "user.e", b"full", os.XATTR_REPLACE)
        eq(os.getxattr(p, "user.e"), b"full")
        fails(errno.ENODATA, os.removexattr, p, "user.none")

    with t.claim("attributes need the right to write, and go with regular files and directories only"):
        put("xattr-theirs", mode=0o644)
        fails(errno.EACCES, as_user, lambda: os.setxattr("xattr-theirs", "user.a", b""))
        os.symlink("xattr-theirs", mnt / "xattr-link")
        fails(errno.EPERM, os.setxattr, mnt / "xattr-link", "user.a", b"", follow_symlinks=False)
        os.mkfifo(mnt / "xattr-fifo")
        fails(errno.EPERM, os.setxattr, mnt / "xattr-fifo", "user.a", b"")

    with t.claim("attributes of a directory that exists only through keys, and of the root, have an answer"):
        eq(c.http("PUT", "/kv/implied/key", b"1").status, 201)
        os.setxattr(mnt / "implied", "user.a", b"1")
        eq(os.getxattr(other.path / "implied", "user.a"), b"1")
        eq(os.listxattr(mnt), [])
        fails(errno.ENODATA, os.getxattr, mnt, "user.a")
        fails(errno.EOPNOTSUPP, os.setxattr, mnt, "user.a", b"1")

    with t.claim("a file that lives only by its open handle has none any more"):
        with opened(mnt / "xattr-gone", os.O_CREAT | os.O_RDWR) as fd:
            os.setxattr(fd, "user.a", b"1")
            os.unlink(mnt / "xattr-gone")
            fails(errno.ENODATA, os.getxattr, fd, "user.a")
            eq(os.listxattr(fd), [])

    with t.claim("POSIX ACLs and attributes other than user.* are not supported, which cp -a and rsync -aX take"):
        p = put("acl")
        acl = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
        for name in ("system.posix_acl_access", "system.posix_acl_default"):
            at = p if name.endswith("access") else mkdir("acl-dir")
            fails(errno.EOPNOTSUPP, os.setxattr, at, name, acl)
        fails(errno.EOPNOTSUPP, os.setxattr, p, "trusted.a", b"")
        os.setxattr(p, "user.kept", b"1")
        local = c.dir / "local"
        subprocess.run(["cp", "-a", p, local], check=True)
        subprocess.run(["cp", "-a", local, mnt / "acl-back"], check=True)
        subprocess.run(["rsync", "-aX", local, mnt / "acl-rsync"], check=True)
        for name in ("acl-back", "acl-rsync"):
            eq((os.getxattr(mnt / name, "user.kept"), os.stat(mnt / name).st_mtime_ns), (b"1", os.stat(p).st_mtime_ns))


def kinds():
    with t.claim("symbolic links may be as long as Linux allows, and point anywhere"):
        for target in (b"a" * 1023, b"b" * 4095, b"/\xff\xfe nowhere", b"../.."):
            os.symlink(target, os.fsencode(mnt / "link"))
            eq(os.readlink(os.fsencode(other.path / "link")), target)
            eq(os.lstat(mnt / "link").st_size, len(target))
            os.unlink(mnt / "link")
        fails(errno.ENAMETOOLONG, os.symlink, "c" * 4096, mnt / "link")
        fails(errno.ENOENT, os.symlink, "", mnt / "link")

    with t.claim("pipes, sockets and devices keep kind, number, owner and mode, in every mount and after a rename"):
        made = {
            "k-fifo": (stat.S_IFIFO | 0o620, 0),
            "k-sock": (stat.S_IFSOCK | 0o640, 0),
            "k-null": (stat.S_IFCHR | 0o666, os.makedev(1, 3)),
            "k-char": (stat.S_IFCHR | 0o600, os.makedev(4095, 1_048_575)),
            "k-block": (stat.S_IFBLK | 0o600, os.makedev(7, 300)),
        }
        for name, (how, dev) in made.items():
            os.mknod(mnt / name, how, dev)
            os.chmod(mnt / name, stat.S_IMODE(how))
            os.chown(mnt / name, 11, 12)
            os.rename(mnt / name, mnt / (name + "2"))
            for m in (mnt, other.path):
                st = os.lstat(m / (name + "2"))
                eq((oct(st.st_mode), st.st_rdev, st.st_uid, st.st_gid), (oct(how), dev, 11, 12), name)

    with t.claim("a device that root made works where the mount allows devices, a socket can be bound and connected to"):
        with opened(mnt / "k-null2", os.O_RDWR) as fd:
            eq((os.write(fd, b"gone"), os.read(fd, 10)), (4, b""))
        server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(mnt)  # the names of sockets are short
        try:
            server.bind("bound")
            server.listen()
            client.connect("bound")
        finally:
            os.chdir(here)
        accepted = server.accept()[0]
        client.send(b"hello")
        eq(accepted.recv(10), b"hello")
        for s in (server, client, accepted):
            s.close()

    with t.claim("only root makes devices, and nobody hard links"):
        mkdir("anyone", 0o777)
        fails(errno.EPERM, as_user, lambda: os.mknod("anyone/dev", stat.S_IFCHR, os.makedev(1, 3)))
        put("one-name")
        fails(errno.EPERM, os.link, mnt / "one-name", mnt / "second")

    with t.claim("a path may be as long as Linux allows, 4,095 bytes, and no name longer than 255"):
        here = os.getcwd()
        os.chdir(mnt)
        try:
            parts = ["d" * 200] * 20
            path = "/".join(parts) + "/" + "f" * (4095 - 20 * 201)
            os.makedirs("/".join(parts))
            pathlib.Path(path).write_bytes(b"deep")
            eq(pathlib.Path(path).read_bytes(), b"deep")
            eq(os.stat(path).st_size, 4)
            fails(errno.ENAMETOOLONG, os.stat, path + "f")
            fails(errno.ENAMETOOLONG, os.mkdir, "n" * 256)
            os.unlink(path)
        finally:
            os.chdir(here)
        deepest = mnt / "/".join(parts)
        with opened(deepest, os.O_RDONLY | os.O_DIRECTORY) as fd:
            fails(errno.ENAMETOOLONG, os.mkdir, "e" * 100, dir_fd=fd)
            last = "l" * (4096 - 20 * 201)  # with a slash behind it, which a directory needs, a byte too much
            fails(errno.ENAMETOOLONG, os.mkdir, last, dir_fd=fd)
            fails(errno.ENAMETOOLONG, os.rename, mkdir("shallow"), last, dst_dir_fd=fd)
            os.close(os.open(last, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            os.mkdir(last[1:], dir_fd=fd)


def identity():
    with t.claim("st_ino and its kin are the same in both mounts, after a remount, and after a rename"):
        put("i-file")
        mkdir("i-dir")
        put("i-dir/below")
        os.symlink("x", mnt / "i-link")
        os.mknod(mnt / "i-dev", stat.S_IFBLK, os.makedev(9, 9))
        c.http("PUT", "/kv/i-implied/key", b"")
        names = ["i-file", "i-dir", "i-dir/below", "i-link", "i-dev", "i-implied", "i-implied/key"]
        first = {n: os.lstat(mnt / n).st_ino for n in names}
        eq(len(set(first.values())), len(names))
        eq({n: os.lstat(other.path / n).st_ino for n in names}, first)
        second.stop()
        second.start()
        eq({n: os.lstat(other.path / n).st_ino for n in names}, first)
        for n in ("i-file", "i-dir", "i-link", "i-dev"):
            os.rename(mnt / n, mnt / (n + "2"))
            eq((os.lstat(mnt / (n + "2")).st_ino, os.lstat(other.path / (n + "2")).st_ino), (first[n], first[n]), n)
        eq(os.stat(mnt / "i-dir2/below").st_ino, first["i-dir/below"])

    with t.claim("listings tell the same numbers, also of . and .."):
        with os.scandir(mnt / "i-dir2") as listing:
            eq({e.name: e.inode() for e in listing}, {"below": os.stat(mnt / "i-dir2/below").st_ino})
        out = subprocess.run(["python3", "-c", DOTS, mnt / "i-dir2"], capture_output=True, check=True)
        eq(out.stdout.decode().split(), [str(os.stat(mnt / "i-dir2").st_ino), str(os.stat(mnt).st_ino)])

    with t.claim("a file is another one when it was removed and made again, here or elsewhere"):
        for where in (mnt, other.path):
            p = put("again", b"first")
            with opened(p, os.O_RDONLY) as fd:
                before = os.fstat(fd)
                os.unlink(where / "again")
                (where / "again").write_bytes(b"second!")
                soon(lambda: os.stat(p).st_ino != before.st_ino, True)
                eq((os.stat(p).st_size, p.read_bytes()), (7, b"second!"))

    with t.claim("what was removed elsewhere and made anew here with O_EXCL leaves an open handle its old contents"):
        p = put("excl", b"first")
        with opened(p, os.O_RDONLY) as fd:
            os.unlink(other.path / "excl")
            with opened(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY) as fd2:
                eq(os.fstat(fd2).st_ino != os.fstat(fd).st_ino, True)
                os.write(fd2, b"other")
            eq(os.pread(fd, 10, 0), b"first")
        eq((other.path / "excl").read_bytes(), b"other")

    with t.claim("of one name created through both at once, the maker's chmod holds and nobody undoes it"):
        for first, then in ((mnt, other.path), (other.path, mnt)):
            with opened(first / "both", os.O_CREAT | os.O_WRONLY, 0o600) as one, \
                 opened(then / "both", os.O_CREAT | os.O_WRONLY, 0o666) as two:
                os.write(one, b"1")
                os.fsync(one)
                ino = os.fstat(one).st_ino
                os.write(two, b"2")
            soon(lambda: (mode(mnt / "both"), mode(other.path / "both"), os.stat(then / "both").st_ino),
                 (oct(0o600), oct(0o600), ino))
            os.unlink(mnt / "both")

    with t.claim("an open file that was unlinked lives on, with all its attributes, to its last close"):
        p = put("unlinked", b"data", mode=0o640, owner=(USER, GROUP))
        with opened(p, os.O_RDWR) as fd:
            before = os.fstat(fd)
            os.unlink(p)
            os.fchmod(fd, 0o600)
            os.utime(fd, ns=(1, 2))
            os.write(fd, b"DATA+")
            st = os.fstat(fd)
            eq((oct(st.st_mode), st.st_uid, st.st_nlink, st.st_size, st.st_ino), (oct(0o100600), USER, 0, 5, before.st_ino))
            eq(os.pread(fd, 9, 0), b"DATA+")
        eq(os.path.lexists(p), False)
        eq(c.http("GET", "/kv/unlinked").status, 404)


DOTS = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
fd = os.open(sys.argv[1], os.O_RDONLY)
buf = ctypes.create_string_buffer(4096)
n = libc.syscall(217, fd, buf, 4096)
found, at = {}, 0
while at < n:
    ino, off, reclen = struct.unpack_from("<QqH", buf.raw, at)
    found[buf.raw[at + 19:at + reclen].split(b"\\0")[0]] = ino
    at += reclen
print(found[b"."], found[b".."])
"""


with Claims() as t, Cluster(base_port=21500) as c:
    os.chmod(c.dir, 0o755)
    options = ("default_permissions", "allow_other", "dev", "suid")
    mnt = c.mount(options=options).path
    second = c.mount("other", [*options, "attr_timeout=0"])  # looks at once, always
    other = second
    for part in (privileges, directories, times, attributes, kinds, identity):
        part()
