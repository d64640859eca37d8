"""test_append.py - appending through several handles and mounts; and files that another mount takes away meanwhile."""
import errno
import os
import pathlib
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, wait_until

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
SHELLS, LINES = 8, 25


def contents(path):
    """As an open finds them; None: it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def code_of(call, *args):
    """0, or the name of the error that the call ended with."""
    try:
        call(*args)
    except OSError as e:
        return errno.errorcode[e.errno]
    return 0


with Claims() as t, Cluster(base_port=21610, config={"max_value_size": 8 << 20}) as c:
    a, b = c.mount("a").path, c.mount("b").path

    with t.claim(f"{SHELLS} shells on two mounts, lines of many lengths with >>: all are there, once, whole, each shell's in order"):
        script = 'for i in $(seq %d); do printf "%%s %%d %%0*d\\n" $1 $i $((i * 37 %% 3000 + 1)) 0 >> log; done' % LINES
        shells = [subprocess.Popen(["bash", "-ec", script, "sh", f"s{k}"], cwd=(a, b)[k % 2]) for k in range(SHELLS)]
        eq([p.wait(120) for p in shells], [0] * SHELLS)
        lines = [line.split() for line in (b / "log").read_text().splitlines()]
        eq(sorted(line[0] for line in lines), sorted(f"s{k}" for k in range(SHELLS) for _ in range(LINES)))
        for k in range(SHELLS):
            mine = [(int(i), len(pad)) for name, i, pad in lines if name == f"s{k}"]
            eq(mine, [(i, i * 37 % 3000 + 1) for i in range(1, LINES + 1)])

    with t.claim("a large write is appended in one piece, beside others' small ones"):
        big = [bytes([65 + k]) * 1_200_001 for k in range(4)]

        def append(mnt, data):
            fd = os.open(mnt / "big", APPEND)
            try:
                for _ in range(2):
                    eq(os.write(fd, data), len(data))
                    # Where it cannot be told in time whether it is stored, the next try finds out.
                    wait_until(lambda: code_of(os.fsync, fd) == 0, 100, "it is stored")
            finally:
                os.close(fd)

        threads = [threading.Thread(target=append, args=((a, b)[k % 2], big[k] if k < 3 else b"\n")) for k in range(4)]
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        rest = (a / "big").read_bytes()
        for data in big[:3]:
            eq(rest.count(data), 2)
            rest = rest.replace(data, b"")
        eq(rest, b"\n\n")

    with t.claim("a handle reads what it has appended, and what others have once it is stored"):
        (a / "mix").write_bytes(b"0")
        fd, other = os.open(a / "mix", os.O_RDWR | os.O_APPEND), os.open(b / "mix", APPEND)
        os.write(fd, b"1")
        eq(os.pread(fd, 9, 0), b"01")
        os.write(other, b"2")
        os.fsync(other)
        eq(os.pread(fd, 9, 0), b"01")
        os.write(fd, b"3")
        os.fsync(fd)
        eq((os.pread(fd, 9, 0), os.fstat(fd).st_size), (b"0213", 4))
        os.write(fd, b"4")
        eq(os.read(fd, 9), b"")  # it stands behind what it wrote last
        os.lseek(fd, 2, os.SEEK_SET)
        eq(os.read(fd, 9), b"134")
        os.close(fd)
        os.close(other)
        eq((b / "mix").read_bytes(), b"02134")

    with t.claim("pwrite of a handle opened for appending appends, as on Linux; truncate and append go together"):
        (a / "pw").write_bytes(b"abc")
        fd = os.open(a / "pw", os.O_RDWR | os.O_APPEND)
        os.pwrite(fd, b"X", 0)
        eq(os.pread(fd, 9, 0), b"abcX")
        os.ftruncate(fd, 2)
        os.write(fd, b"Y")
        eq(os.pread(fd, 9, 0), b"abY")
        os.ftruncate(fd, 5)
        os.write(fd, b"Z")
        os.close(fd)
        eq((b / "pw").read_bytes(), b"abY\0\0Z")
        fd = os.open(a / "pw", APPEND)
        os.write(fd, b"1")
        os.truncate(b / "pw", 0)  # as a log that is cut by another machine
        os.write(fd, b"2")
        os.close(fd)
        eq((b / "pw").read_bytes(), b"12")

    with t.claim("what is appended to a name that another mount replaced or deleted goes to what has it now"):
        for replace, want in ((True, b"new+more"), (False, b"+more")):
            (a / "rot").write_bytes(b"old")
            fd = os.open(a / "rot", APPEND)
            os.write(fd, b"+more")
            os.rename(b / "rot", b / "rot.1")
            if replace:
                (b / "rot").write_bytes(b"new")
            os.close(fd)
            eq(((b / "rot").read_bytes(), (b / "rot.1").read_bytes()), (want, b"old"))
            os.unlink(b / "rot")

    with t.claim("an append past the largest value is EFBIG at the write, or, where others filled it, at the close; nothing is cut"):
        (a / "full").write_bytes(b"x" * (8 << 20))
        fd = os.open(a / "full", APPEND)
        eq(code_of(os.write, fd, b"y"), "EFBIG")
        os.close(fd)
        os.truncate(a / "full", (8 << 20) - 4)
        fd, other = os.open(a / "full", APPEND), os.open(b / "full", APPEND)
        os.write(fd, b"yyy")
        os.write(other, b"zzz")
        eq((code_of(os.fsync, fd), code_of(os.fsync, other), code_of(os.close, other)), (0, "EFBIG", "EFBIG"))
        os.close(fd)
        eq((b / "full").read_bytes()[-5:], b"xxyyy"[-5:])
        eq((b / "full").stat().st_size, (8 << 20) - 1)

    with t.claim("a change of a file that another mount deleted or replaced is ESTALE, and nothing comes back"):
        for how in ("deleted", "moved away", "replaced"):
            (a / "f").write_bytes(b"old")
            fd = os.open(a / "f", os.O_RDWR)
            os.pwrite(fd, b"N", 0)
            if how == "deleted":
                os.unlink(b / "f")
            elif how == "moved away":
                os.rename(b / "f", b / "g")
            else:
                (b / "f.new").write_bytes(b"other")
                os.rename(b / "f.new", b / "f")
            eq((code_of(os.fsync, fd), os.pread(fd, 9, 0)), ("ESTALE", b"Nld"), how)
            eq(code_of(os.close, fd), "ESTALE", how)
            left = {name: (b / name).read_bytes() for name in ("f", "g") if (b / name).exists()}
            eq(left, {"deleted": {}, "moved away": {"g": b"old"}, "replaced": {"f": b"other"}}[how], how)
            for name in left:
                os.unlink(b / name)

    with t.claim("a file that was emptied here and deleted elsewhere is stored with what was written"):
        (a / "f").write_bytes(b"old")
        with open(a / "f", "wb", buffering=0) as f:
            f.write(b"new")
            os.unlink(b / "f")
        eq((b / "f").read_bytes(), b"new")

    with t.claim("a file that this mount deletes or replaces stays so, whatever its handles still write"):
        for replaced in (False, True):
            for flags in (os.O_RDWR, APPEND, os.O_WRONLY | os.O_TRUNC):
                (a / "f").write_bytes(b"old")
                fd = os.open(a / "f", flags)
                os.write(fd, b"x")
                if replaced:
                    (a / "f.new").write_bytes(b"other")
                    os.rename(a / "f.new", a / "f")
                else:
                    os.unlink(a / "f")
                os.write(fd, b"y")
                os.fsync(fd)
                os.close(fd)
                eq(contents(b / "f"), b"other" if replaced else None)
                (b / "f").unlink(missing_ok=True)
