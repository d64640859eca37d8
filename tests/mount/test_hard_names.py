"""test_hard_names.py - unusual keys and names, put over HTTP and read in the mount, and the other way round."""
import errno
import os
import pathlib
import random
import sys
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq

SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


def url(key):
    """A key as a path that no client folds."""
    return "/kv/" + urllib.parse.quote_from_bytes(key, safe="/").replace(".", "%2E")


def put(key, value):
    a = c.http("PUT", url(key), value, node=1)
    if a.status not in (200, 201):
        raise AssertionError(f"PUT {key!r}: {a}")


def get(key):
    a = c.http("GET", url(key), node=2)
    return a.body if a.status == 200 else None


def walk(top=b""):
    """All files of the mount: path -> contents, by names as bytes."""
    found = {}
    root = os.fsencode(mnt)
    for here, _, files in os.walk(os.path.join(root, top)):
        for name in files:
            p = os.path.join(here, name)
            with open(p, "rb") as f:
                found[os.path.relpath(p, root)] = f.read()
    return found


def at(path):
    return os.path.join(os.fsencode(mnt), path)


def write(path, data):
    with open(at(path), "wb") as f:
        f.write(data)


def read(path):
    with open(at(path), "rb") as f:
        return f.read()


# Key -> where the mount shows it.
SHOWN = {
    b"a b": b"a b",
    b"a+b": b"a+b",
    b"100%": b"100%",
    b"%41": b"%41",
    b"bytes\xff\xfe": b"bytes\xff\xfe",
    b"new\nline": b"new\nline",
    b"..": b"%2E%2E",
    b".": b"%2E",
    b"...": b"...",
    b"d/..": b"d/%2E%2E",
    b"d/./x": b"d/%2E/x",
    b"s//b": b"s/%00/b",
    b"s/b": b"s/b",
    b"/a": b"%00/a",
    b"%2E": b"%252E",
    b"%00": b"%2500",
    b"%00key": b"%2500key",
    b"-rf": b"-rf",
    b"n" * 255: b"n" * 255,
    b"p/" + b"q" * 255: b"p/" + b"q" * 255,
}

with Claims() as t, Cluster(base_port=18340, config={"max_value_size": 64 << 20}) as c:
    mnt = c.mount().path

    with t.claim("unusual keys put over HTTP show once each, under a name of their own"):
        for i, key in enumerate(SHOWN):
            put(key, b"value %d" % i)
        eq(walk(), {SHOWN[key]: b"value %d" % i for i, key in enumerate(SHOWN)})

    with t.claim("the same names written in the mount are these keys"):
        for i, (key, path) in enumerate(SHOWN.items()):
            write(path, b"mount %d" % i)
            eq(get(key), b"mount %d" % i, repr(key))
            os.unlink(at(path))
            eq(get(key), None, repr(key))

    with t.claim("a name with a NUL is refused, and what stands before it is untouched"):
        put(b"nul", b"whole")
        eq(c.http("GET", "/kv/nul%00b").status, 400)
        eq(c.http("PUT", "/kv/nul%00b", b"cut").status, 400)
        eq(get(b"nul"), b"whole")

    with t.claim("a directory hides the key of its name, which shows inside under an escape"):
        put(b"both", b"the file")
        put(b"both-x", b"between")
        put(b"both/in", b"inside")
        eq(os.path.isdir(at(b"both")), True)
        eq(sorted(os.listdir(at(b"both"))), [b"%00key", b"in"])
        eq(read(b"both/%00key"), b"the file")
        names = os.listdir(os.fsencode(mnt))
        eq((names.count(b"both"), b"both-x" in names), (1, True))
        write(b"both/%00key", b"changed")
        eq(get(b"both"), b"changed")
        os.unlink(at(b"both/%00key"))
        eq((get(b"both"), os.listdir(at(b"both"))), (None, [b"in"]))
        put(b"both", b"again")
        os.unlink(at(b"both/in"))
        eq(os.listdir(at(b"both")), [b"%00key"])

    with t.claim("a key with a part over 255 bytes is reached through directories of pieces"):
        long = b"L" * 700 + b"/tail"
        put(long, b"long")
        put(b"L" * 700 + b"2", b"longer")
        files = {p: v for p, v in walk().items() if p.startswith(b"LLL")}
        eq(sorted(files.values()), [b"long", b"longer"])
        for p, v in files.items():
            eq(all(len(part) <= 255 for part in p.split(b"/")), True)
            eq(read(p), v)
        path = next(p for p, v in files.items() if v == b"long")
        write(path, b"written through")
        eq(get(long), b"written through")
        os.unlink(at(path))
        eq(get(long), None)

    with t.claim("names of 255 bytes are made, 256 are ENAMETOOLONG"):
        write(b"m" * 255, b"x")
        eq(get(b"m" * 255), b"x")
        for call in (lambda: write(b"m" * 256, b"x"), lambda: os.mkdir(at(b"m" * 256)), lambda: os.stat(at(b"m" * 256))):
            try:
                call()
            except OSError as e:
                eq(e.errno, errno.ENAMETOOLONG)
            else:
                raise AssertionError("256 bytes were accepted")

    with t.claim("a key of 4,096 bytes is read, written and listed, one byte more is ENAMETOOLONG"):
        key = b"/".join([b"k" * 127] * 32)
        eq(len(key), 4095)
        key += b"k"
        fd = os.open(mnt, os.O_DIRECTORY)
        for part in key.split(b"/")[:-1]:  # step by step: a path given to one call has at most 4,095 bytes
            os.mkdir(part, dir_fd=fd)
            below = os.open(part, os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        name = key.split(b"/")[-1]
        f = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd)
        os.write(f, b"deep")
        os.close(f)
        eq(get(key), b"deep")
        eq(os.listdir(fd), [os.fsdecode(name)])
        try:
            os.open(name + b"k", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
        except OSError as e:
            eq(e.errno, errno.ENAMETOOLONG)
        else:
            raise AssertionError("4,097 bytes were accepted")
        os.unlink(name, dir_fd=fd)
        os.close(fd)
        eq(c.http("PUT", url(b"k" * 4097), b"").status, 414)

    with t.claim("the empty value and the largest one go both ways, one byte more is EFBIG"):
        write(b"empty", b"")
        eq((get(b"empty"), os.stat(at(b"empty")).st_size), (b"", 0))
        put(b"empty2", b"")
        eq(read(b"empty2"), b"")
        data = os.urandom(1 << 20) * 64
        write(b"max", data)
        eq(get(b"max") == data, True)
        eq(read(b"max") == data, True)
        with open(at(b"max"), "r+b", buffering=0) as f:
            f.seek(64 << 20)
            try:
                f.write(b"x")
            except OSError as e:
                eq(e.errno, errno.EFBIG)
            else:
                raise AssertionError("one byte more was accepted")
        eq(os.stat(at(b"max")).st_size, 64 << 20)
        os.unlink(at(b"max"))

    with t.claim(f"random names round-trip (SEED={SEED})"):
        rnd = random.Random(SEED)
        alphabet = [b"%", b"0", b"2", b"5", b"E", b".", b"k", b"\xff", b" ", b"+", b"\\", b"00", b"key"]
        names = set()
        while len(names) < 60:
            name = b"".join(rnd.choice(alphabet) for _ in range(rnd.randint(1, 12)))
            if name not in (b".", b".."):
                names.add(name)
        os.mkdir(at(b"rnd"))
        made = {}
        for name in sorted(names):
            try:
                write(b"rnd/" + name, name)
                made[name] = name
            except OSError as e:  # a name that is an escape of something that cannot be a file
                eq(e.errno in (errno.EINVAL, errno.EISDIR), True, f"{name!r}: {e}")
        eq(set(os.listdir(at(b"rnd"))), set(made))
        eq({n: read(b"rnd/" + n) for n in made}, made)
        eq(len(made) > 50, True)
