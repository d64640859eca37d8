"""test_programs.py - everyday programs do in a mount what they do in a local directory: same output, same trees."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster
from twins import Twins

# Each: a claim, and a script that is run by bash in an empty directory of the mount and in a local one; what it prints
# and what it leaves must be the same. $SRC is a tree outside, $OUT a directory outside of its own.
SCRIPTS = [
    ("tar gets modes, times and symbolic links back", """
        tar -C "$SRC" -cf - . | tar -xpf -
        tar -cf "$OUT/a.tar" . && mkdir -p again && tar -C again -xpf "$OUT/a.tar"
        tar -C again -df "$OUT/a.tar" && tar -tvf "$OUT/a.tar" | sort -k6 | grep -v '/$'
    """),
    ("cp -a, cp --sparse, --reflink=auto, -u, -l refused, and mv between them", """
        cp -a "$SRC" a && cp -a a b && diff -r --no-dereference a b
        cp --sparse=always a/sparse s1 && cp --sparse=never a/sparse s2 && cmp s1 s2 && cmp s1 "$SRC/sparse"
        cp --reflink=auto a/data s3 && cmp s3 a/data && cp -u a/data s3 && cp --preserve=all a/script s4
        mv b "$OUT/b" && mv "$OUT/b" c && diff -r --no-dereference a c && mv -n s3 s4 && mv -T c d && ls -A a d
        cp -r --no-preserve=all a/dir e; cp a/data a/dir/one e; cat e/one; cp -b --suffix=.old a/data e/one; ls e
    """),
    ("install, ln -s, readlink, realpath, mkdir -p and rmdir -p", """
        install -m 750 "$SRC/data" prog; install -d -m 711 deep/er; install -D "$SRC/script" deep/x/y/z
        ln -s prog link; ln -s nowhere dangling; ln -sfn deep link2; ln -sf data link
        readlink link dangling link2; realpath --relative-to=. link2/er; cat dangling; test -L dangling && echo yes
        mkdir -p a/b/c/d; rmdir -p a/b/c/d; rmdir deep; stat -c '%n %F %a' * | sort
    """),
    ("find -newer, -size, -perm, -type, -exec, -delete; xargs -P; grep -r", """
        cp -a "$SRC" t; touch -d '2001-01-01' old; touch -d '2002-02-02 02:02:02.123456789' new
        find . -newer old -type f | sort; find t -newermt 2001-06-01 | wc -l; find . -size +100k | sort; find . -perm /111 -type f | sort
        find t -type l -printf '%p %l\\n'; find t -type f -printf '%P %s %m\\n' | sort; find t -name 'o*' -exec cat {} \\; | sort
        find t -type f -print0 | xargs -0 -n 2 -P 8 md5sum | sort -k2; grep -rn needle . | sort; grep -rlZ needle | xargs -0 ls -U | sort
        seq 40 | xargs -P 8 -I{} sh -c 'echo {} > f{}; cat f{} >> all'; sort -n -o all all; find t -depth -delete; ls
    """),
    ("sort -o onto itself, sed -i, perl-like edits, ed, ex, patch", """
        seq 1000 | sort -R > n; sort -n -o n n; md5sum n; sed -i.bak 's/9/nine/' n; diff n n.bak | wc -l
        sed -i -e 1d -e '$d' n; wc n; printf '1d\\n$a\\nlast\\n.\\nw\\nq\\n' | ed -s n; tail -1 n; chmod 640 n; sed -i s/a/b/ n
        cp n.bak m; sed 's/5/five/' n.bak > w; diff -u --label n.bak --label n.bak n.bak w > p; patch -s m p && cmp m w; patch -s -R m p && cmp m n.bak
        cp -a n n.new; sed -i 2q n n.new; cmp n n.new; stat -c '%a %s %n' n m w
    """),
    ("here-documents, process substitution, redirections of every kind, FIFOs", """
        cat > doc <<END
        one $((1 + 1))
END
        cat doc; cat <<< "string" >> doc; diff <(seq 5) <(seq 6) > d; cat d; paste <(cut -c1-3 doc) d > pd; cat pd
        { echo out; echo err >&2; } > both 2>&1; cat both; exec 3<> rw; echo hello >&3; exec 3<&-; cat rw
        echo x >| both; set -C; echo y > both || echo kept; set +C; (echo a; cat doc; echo b) > sub; cat sub
        : > e; : >> e; wc -c e; echo 1 > l; echo 2 >> l; exec 4< l; read -u4 a; echo 3 >> l; cat <&4; exec 4<&-
        mkfifo ff; (seq 100 > ff) & awk '{s += $1} END {print s}' ff; wait; test -p ff && echo fifo
        while read -r n; do echo $((n * n)); done < <(seq 4) > sq; cat sq; tee t1 t2 < sq > t3; tee -a t1 < sq > t2; cat t1
    """),
    ("split and cat, head -c, tail -c, dd with notrunc, append, seek and skip, truncate, cmp", """
        cp "$SRC/data" d; split -b 70000 d part.; cat part.* > e; cmp d e; ls part.*; split -n l/3 -d "$SRC/text" t.; wc -l t.*
        head -c 1000 d > h; tail -c 1000 d >> h; md5sum h; dd if=h of=d bs=100 seek=3 count=2 conv=notrunc status=none; md5sum d
        dd if=h of=d oflag=append conv=notrunc bs=1k status=none; dd if=d of=x bs=1000 skip=2 seek=5 status=none; md5sum d x
        dd if=/dev/zero of=z bs=1 count=0 seek=100000 status=none; dd if=h of=z bs=4k conv=fsync,notrunc status=none; md5sum z
        truncate -s 5 h; cat h | od -c; truncate -s +5 h; truncate -s %7 h; od -c h; truncate -r d r; wc -c r; shred -n1 -u h
        dd if=d bs=64k iflag=fullblock status=none | md5sum; cmp d x | head -1; fallocate -l 9999 fa; wc -c fa
    """),
    ("mktemp, flock, touch -r, -d and -c, chmod, date -r, test -nt", """
        f=$(mktemp -p . tmp.XXXXXX); stat -c %a "$f"; d=$(mktemp -d -p .); stat -c '%a %F' "$d"; rm -r "$f" "$d"
        seq 20 | xargs -P 5 -I{} flock lock sh -c 'n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n'; cat n
        flock -n lock sh -c 'flock -n lock true || echo busy'; touch -d '2020-02-20 20:20:20.202020202' a; touch -r a b
        stat -c '%y %n' a b; touch -c none; ls none; test a -nt lock || echo older; test a -ot lock && echo older; date -u -r a
        touch -a -d 2019-01-01 a; stat -c '%y' a; touch -m -d 2018-01-01 a; stat -c %y a; chmod u+s,g-r a; chmod 1777 .; stat -c %a a .
        umask 027; echo > u; mkdir ud; stat -c '%a' u ud; [ -r a ] && [ ! -x u ] && [ -s u ] && echo tests
    """),
    ("gzip -r, tar's -z and --transform, and checksums that are read back", """
        cp -a "$SRC" t; gzip -r t/dir; find t/dir -name '*.gz' -printf '%f %TY\\n' | sort; gunzip -r t/dir; diff -r --no-dereference t "$SRC"
        tar -czf t.tgz t; tar -xzf t.tgz --transform 's,^t,u,'; diff -r --no-dereference t u; md5sum t/data t/text > sums; md5sum -c sums
        (cd t; tar -cf - .) | (mkdir v; cd v; tar -xf -); diff -r --no-dereference t v; rm t.tgz
    """),
    ("rsync -aX --checksum both ways: a second run transfers nothing; --inplace, --delete, --append", """
        cp -a "$SRC" s; python3 -c 'import os; os.setxattr("s/data", "user.color", b"blue")'
        rsync -aX --checksum s/ "$OUT/o/" && rsync -aX --checksum -i s/ "$OUT/o/"; echo "again: $?"
        rsync -aX --checksum "$OUT/o/" b/ && rsync -aX --checksum -i "$OUT/o/" b/; rsync -aX -i "$OUT/o/" b/; echo "again: $?"
        diff -r --no-dereference "$SRC" b && rsync -aX -i --dry-run s/ b/; echo changed >> s/text; rm -f b/data; echo other > b/extra
        rsync -aXO --checksum --inplace --delete -i s/ b/; rsync -aXO -i --delete s/ b/; echo more >> s/data; rsync --append -a s/data b/data
        cmp s/data b/data; rsync -a --no-whole-file --inplace s/data "$OUT/d"; echo end >> "$OUT/d"; touch -d 2003-03-03 "$OUT/d"
        rsync -a --no-whole-file -i "$OUT/d" b/data
        rsync -a --sparse s/sparse sp; cmp sp s/sparse; rsync -a --remove-source-files s/dir m/; find m s/dir | sort
    """),
    ("vim saves with backupcopy=yes and =no, and permissions, owner and swap files are as locally", """
        edit() { vim=$(command -v vim.tiny || command -v vim); "$vim" -u NONE -N -n -es "$@" </dev/null; echo "vim: $?"; }
        seq 100 > f; chmod 640 f; chown 1234:2345 f; touch -d 2001-01-01 f; ln -s f link
        edit -c 'set backupcopy=yes nobackup writebackup' -c '%s/1/one/' -c wq f; head -2 f; stat -c '%a %u:%g %F' f; ls -A
        edit -c 'set backupcopy=no nobackup writebackup' -c '%s/2/two/' -c wq f; sed -n 2p f; stat -c '%a %u:%g %F' f; ls -A
        edit -c 'set backupcopy=auto backup' -c '%s/3/three/' -c wq f; sed -n 3p f; stat -c '%a %u:%g %n' f f~; ls -A
        edit -c 'set backupcopy=yes' -c '1d' -c wq link; head -1 f; stat -c %F link; edit -c 'a' -c 'new' -c '.' -c wq fresh; cat fresh
        edit --cmd 'set swapfile updatecount=1 directory=.' -c 'set swapfile' -c '$s/$/!/' -c 'silent !ls -A > names' -c wq f; cat names; tail -1 f; ls -A
    """),
    ("du, wc and ls tell the same sizes", """
        cp -a "$SRC" t; find t -type f -exec du --apparent-size -b {} + | sort -k2; cat t/*/* t/text | wc; ls -ARs --block-size=1 t >/dev/null
        ls -l t | awk '{print $1, $5, $9}' | grep -v '^d\\|^total'; stat -c '%s %a %n' t/data t/text t/script; ls -1U t | sort; df . | wc -l
    """),
]

PYTHON = r'''
import contextlib, dbm.dumb, filecmp, fileinput, io, mmap, os, pathlib, pickle, shelve, shutil, sqlite3, tempfile, zipfile

src = pathlib.Path(os.environ["SRC"])
here = pathlib.Path.cwd()
shutil.copytree(src, "t", symlinks=True)
print(sorted(str(p) for p in pathlib.Path("t").rglob("*")))
shutil.move("t", "u")
shutil.move("u/data", os.environ["OUT"])
shutil.move(os.environ["OUT"] + "/data", "u/data")
cmp = filecmp.dircmp(src, "u")
print(cmp.left_only, cmp.right_only, cmp.diff_files, filecmp.cmp(src / "data", "u/data", shallow=False))
shutil.copytree("u", "v", symlinks=True, dirs_exist_ok=True)
shutil.rmtree("v")
print(shutil.disk_usage(".").total > 0, os.path.exists("v"))
shutil.make_archive("arch", "zip", "u")
with zipfile.ZipFile("arch.zip") as z:
    print(z.testzip(), sorted(z.namelist()))
    z.extractall("w")
with zipfile.ZipFile("arch.zip", "a") as z:
    z.writestr("more", "x" * 10000)
print(zipfile.ZipFile("arch.zip").read("more") == b"x" * 10000)
os.unlink("arch.zip")
with tempfile.TemporaryFile(dir=".") as f:
    f.write(b"abc"); f.seek(0); print(f.read())
with tempfile.NamedTemporaryFile(dir=".", prefix="n") as f:
    f.write(b"abc"); f.flush(); print(pathlib.Path(f.name).read_bytes())
with tempfile.TemporaryDirectory(dir=".") as d:
    pathlib.Path(d, "x").write_text("y")
with tempfile.SpooledTemporaryFile(max_size=10, dir=".") as f:
    f.write(b"0" * 100); f.seek(0); print(len(f.read()))
with open("m", "w+b") as f:
    f.truncate(100000)
    with mmap.mmap(f.fileno(), 0) as m:
        m[50000:50005] = b"hello"; print(m.find(b"hello")); m.flush()
    f.seek(50000); print(f.read(5))
    f.seek(-5, os.SEEK_END); f.write(b"end"); print(f.tell())
with shelve.open("sh", flag="n") as s:
    for i in range(50): s[str(i)] = list(range(i))
with shelve.open("sh") as s:
    print(sum(len(v) for v in s.values())); del s["3"]; print(len(s))
with dbm.dumb.open("dd", "c") as d: d[b"k"] = b"v"
with dbm.dumb.open("dd") as d: print(d[b"k"])
for f in here.glob("sh*"): f.unlink()
with sqlite3.connect("db") as db:
    db.execute("create table t (a integer primary key, b)")
    db.executemany("insert into t values (?, ?)", [(i, "v%d" % i) for i in range(2000)])
print(db.execute("select count(*), sum(length(b)) from t").fetchone(), db.execute("pragma integrity_check").fetchone())
db.close(); os.unlink("db")
with os.scandir("u") as it: print(sorted((e.name, e.is_dir(follow_symlinks=False), e.is_symlink(), e.is_file()) for e in it))
p = here / "p"; p.mkdir(); (p / "a").write_text("1\n2\n3\n"); (p / "a").rename(p / "b"); (p / "l").symlink_to("b")
print((p / "l").read_text(), (p / "l").resolve().name, os.path.samefile(p / "l", p / "b"), (p / "b").stat().st_size)
with fileinput.input(p / "b", inplace=True) as lines:
    for line in lines: print(line.strip() * 2)
print((p / "b").read_text())
with open(p / "b", "a+") as f: f.write("4\n"); f.seek(0); print(f.read())
with open(p / "b", "r+") as f: f.readline(); print(f.tell()); f.truncate(3)
with contextlib.suppress(FileExistsError), open(p / "b", "x"): print("not refused")
os.utime(p / "b", ns=(10**18, 10**18 + 1)); print(os.stat(p / "b").st_mtime_ns)
os.setxattr(p / "b", "user.k", b"v"); shutil.copy2(p / "b", p / "c"); print(os.listxattr(p / "c"), os.getxattr(p / "c", "user.k"))
os.replace(p / "c", p / "b"); fd = os.open(p, os.O_RDONLY); os.fsync(fd); print(os.listdir(fd)[:0], sorted(os.listdir(fd)))
os.rename("b", "b2", src_dir_fd=fd, dst_dir_fd=fd); os.close(fd)
r, w = os.pipe(); os.write(w, b"piped"); os.close(w)
f = open("s", "w+b"); print(os.sendfile(f.fileno(), os.open("p/b2", os.O_RDONLY), 0, 3), os.splice(r, f.fileno(), 5)); f.close()
print(pathlib.Path("s").read_bytes())
with open("cfr", "wb") as o, open("u/data", "rb") as i: print(os.copy_file_range(i.fileno(), o.fileno(), 100000))
with open("pk", "wb") as f: pickle.dump({"k": list(range(1000))}, f)
print(len(pickle.load(open("pk", "rb"))["k"]))
'''

# As editors do that write a new file, give it the old one's owner and mode, and rename it.
EDITOR = r'''
import os, shutil, stat, tempfile

def save(path, text):
    st = os.stat(path)
    fd, new = tempfile.mkstemp(prefix=".save-", dir=".")
    with os.fdopen(fd, "w") as f:
        f.write(text); f.flush()
        os.fchown(fd, st.st_uid, st.st_gid); os.fchmod(fd, stat.S_IMODE(st.st_mode)); shutil.copystat(path, new); os.fsync(fd)
    os.utime(new)
    os.rename(new, path)
    d = os.open(".", os.O_RDONLY | os.O_DIRECTORY); os.fsync(d); os.close(d)

with open("f", "w") as f: f.write("old")
os.chmod("f", 0o4750); os.chown("f", 1234, 2345); os.chmod("f", 0o2751); os.setxattr("f", "user.tag", b"t")
reader = open("f")
for n in range(20): save("f", f"text {n}")
st = os.stat("f")
print(open("f").read(), reader.read(), oct(st.st_mode), st.st_uid, st.st_gid, os.getxattr("f", "user.tag"), os.listdir())
os.rename("f", "f~"); shutil.copy2("f~", "f"); print(open("f").read(), sorted(os.listdir()))
'''

PYTHON_SCRIPTS = [
    ("Python's shutil, tempfile, zipfile, mmap, shelve, dbm, sqlite3, pathlib, fileinput, scandir, splice", PYTHON),
    ("an editor that replaces the file by renaming a new one over it keeps mode, owner and attributes", EDITOR),
]


def make_source(at):
    """A small tree of all kinds, with old times."""
    (at / "dir/empty").mkdir(parents=True)
    (at / "data").write_bytes(b"".join(b"%d:%d\n" % (i, i * i) for i in range(20000)))
    (at / "text").write_text("".join(f"line {i} {'needle' if i % 100 == 7 else ''}\n" for i in range(1000)))
    (at / "empty").write_bytes(b"")
    (at / "script").write_text("#!/bin/sh\necho $0 | sed 's,.*/,,'\n")
    (at / "dir/one").write_text("1\n")
    (at / "dir/two words").write_text("2\n")
    (at / "dir/ünï").write_text("needle\n")
    (at / "link").symlink_to("dir/one")
    (at / "dangling").symlink_to("no/such/" + "x" * 200)
    with open(at / "sparse", "wb") as f:
        f.seek(1 << 20)
        f.write(b"end")
    for name, mode in [("script", 0o755), ("data", 0o640), ("dir/one", 0o444), ("dir/empty", 0o700), ("text", 0o604)]:
        (at / name).chmod(mode)
    for k, path in enumerate(sorted(at.rglob("*"), key=lambda p: -len(p.parts))):
        os.utime(path, ns=(10**18, 10**18 + k * 123456789), follow_symlinks=False)
    os.utime(at, ns=(10**18, 10**18))


with Claims() as t, Cluster(base_port=21800) as c:
    src = c.dir / "src"
    src.mkdir()
    make_source(src)
    twins = Twins(c.mount().path, c.dir, {"SRC": str(src)})

    runs = [(sentence, ["bash", "-c", script]) for sentence, script in SCRIPTS]
    runs += [(sentence, [sys.executable, "-c", script]) for sentence, script in PYTHON_SCRIPTS]
    for sentence, command in runs:
        if t.only in sentence:
            with t.claim(sentence):
                twins.same(command)
