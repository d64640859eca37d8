"""test_git.py - git works in a mount: clone, commit, branches, stash, worktree, rebase, gc, fsck; and `git status` is clean after each."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq, soon

N_COMMITS, N_FILES = 8, 12 if os.environ.get("KVFS_TEST_SANITIZED") else 24


class Git:
    """A working tree in a mount. Nobody's configuration, and the same dates, so that commits have the same ids everywhere."""

    def __init__(self, at):
        self.at = at

    def __call__(self, *args, at=None, check=True):
        env = {**os.environ, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "LC_ALL": "C"}
        for who in ("AUTHOR", "COMMITTER"):
            env.update({f"GIT_{who}_NAME": "n", f"GIT_{who}_EMAIL": "e@example.org", f"GIT_{who}_DATE": "2001-01-01T00:00:00Z"})
        r = subprocess.run(["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always", *args], cwd=at or self.at,
                           env=env, capture_output=True, text=True, timeout=100, check=False)
        if check and r.returncode != 0:
            raise AssertionError(f"git {' '.join(args)}: {r.returncode}: {r.stderr[-300:]}")
        return r.stdout

    def clean(self, at=None):
        eq(self("status", "--porcelain", at=at), "", "git status")

    def whole(self):
        eq(self("fsck", "--full", "--strict", "--no-dangling"), "", "git fsck")
        self.clean()


def history(git):
    """Some commits that change, add, move and remove files; the same ids wherever this runs."""
    top = git.at
    git("init", "-q")
    for n in range(N_COMMITS):
        for k in range(N_FILES):
            if (n == 0) or (n + k) % 7 == 3:
                path = top / f"dir{k % 7}" / f"sub{k % 3}" / f"file{k}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(f"{n} {k} line {i}\n" for i in range(40)))
        if n == 1:
            (top / "program").write_text("#!/bin/sh\necho hello\n")
            (top / "program").chmod(0o755)
            (top / "link").symlink_to("dir1/sub1")
            git("mv", "dir0/sub0/file0", "moved")
        if n == 2:
            git("rm", "-q", "-r", "dir6")
        git("add", "-A")
        git("commit", "-q", "-m", f"commit {n}")
        if n % 4 == 3:
            git("tag", "-a", "-m", "a tag", f"v{n}")
    return git("rev-parse", "HEAD")


def next_to(path, text):
    path.write_text(path.read_text() + text)


with Claims() as t, Cluster(base_port=21810) as c:
    mnt = c.mount().path
    local = c.dir / "local"
    local.mkdir()
    (mnt / "made").mkdir()
    head = history(Git(local))

    with t.claim("a history made in the mount is the one made in a local directory, commit by commit"):
        git = Git(mnt / "made")
        eq(history(git), head)
        git.whole()

    with t.claim("a clone is whole, and its working tree clean"):
        Git(mnt)("clone", "-q", f"file://{local}", "repo")
        git = Git(mnt / "repo")
        eq(git("rev-parse", "HEAD"), head)
        git.whole()

    with t.claim("branches are switched, merged and rebased"):
        git("switch", "-q", "-c", "work", "HEAD~3")
        next_to(git.at / "moved", "more\n")
        git("commit", "-q", "-a", "-m", "on a branch")
        (git.at / "new").write_text("new\n")
        git("add", "new")
        git("commit", "-q", "-m", "another")
        git("rebase", "-q", "main")
        git.clean()
        eq(git("rev-list", "--count", "main..work"), "2\n")
        for branch in ("main", "work", "v3", "main"):
            git("checkout", "-q", branch)
            git.clean()
        git("merge", "-q", "--no-ff", "-m", "merged", "work")
        eq((git.at / "new").read_text(), "new\n")
        git.clean()

    with t.claim("stash and reset bring back what they should, and status sees a change of the same size at once"):
        path = git.at / "dir1/sub1/file1"
        before = path.read_text()
        path.write_text(before.replace("line", "LINE"))
        eq(git("status", "--porcelain"), " M dir1/sub1/file1\n")
        git("stash", "-q")
        git.clean()
        eq(path.read_text(), before)
        git("stash", "pop", "-q")
        eq(path.read_text(), before.replace("line", "LINE"))
        git("reset", "-q", "--hard")
        git.clean()

    with t.claim("a second working tree, and its removal"):
        git("worktree", "add", "-q", "../second", "v7")
        git.clean(at=mnt / "second")
        git("switch", "-q", "-c", "there", at=mnt / "second")
        next_to(mnt / "second/moved", "there\n")
        git("commit", "-q", "-a", "-m", "there", at=mnt / "second")
        git("worktree", "remove", "../second")
        eq(((mnt / "second").exists(), git("log", "-1", "--format=%s", "there")), (False, "there\n"))
        git.clean()

    with t.claim("gc and repack leave one whole pack; push and pull go both ways"):
        git("gc", "-q", "--prune=now")
        eq(len(list((git.at / ".git/objects/pack").glob("*.pack"))), 1)
        git("repack", "-q", "-a", "-d", "-f")
        git.whole()
        git("push", "-q", "origin", "HEAD:refs/heads/from-mount")
        git("init", "-q", "--bare", "bare.git", at=mnt)
        git("push", "-q", str(mnt / "bare.git"), "--all")
        Git(c.dir)("clone", "-q", "-b", "main", str(mnt / "bare.git"), "back")
        Git(c.dir / "back").whole()
        git("pull", "-q", "--no-rebase", str(local), "main")
        git.clean()

    with t.claim("another mount sees the same working tree, and can go on in it"):
        other = Git(c.mount("other").path / "repo")
        eq(other("rev-parse", "HEAD"), git("rev-parse", "HEAD"))
        other.clean()
        next_to(other.at / "moved", "from the other side\n")
        other("commit", "-q", "-a", "-m", "from the other side")
        eq(git("log", "-1", "--format=%s"), "from the other side\n")
        git.whole()

    with t.claim("the untracked cache, which goes by the times of directories, misses nothing of what another mount makes and removes"):
        git("update-index", "--force-untracked-cache")
        fresh = git.at / "dir1/sub1/untracked"
        for _ in range(2):
            git.clean()
            (other.at / "dir1/sub1/untracked").write_text("x")
            soon(lambda: git("status", "--porcelain"), "?? dir1/sub1/untracked\n", 20)
            eq(fresh.read_text(), "x")
            os.unlink(other.at / "dir1/sub1/untracked")
            soon(lambda: git("status", "--porcelain"), "", 20)
