"""test_listing_pages.py - listings, page by page, beside a model: complete whatever is deleted meanwhile, or an error."""
import base64
import concurrent.futures
import os
import random
import sys
import threading
import urllib.parse

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from kvtest import Claims, Cluster, eq, wait_until  # noqa: E402

SEED = int(os.environ.get("KVTEST_SEED", random.SystemRandom().randrange(1 << 30)))
WALKS = int(os.environ.get("KVTEST_LISTING_WALKS", "12"))
PARTS = [b"a", b"b", b"c", b"aa", b"a0", b"a.", b"\xc3\xa9", b"\xff", b" ", b"%", b"a b", b""]
N_KEYS = 300


def quote(b):
    return urllib.parse.quote_from_bytes(b, safe="/")


class Model:
    """The cluster, and what it should hold: key -> size."""

    def __init__(self, c, rng):
        self.c, self.rng, self.live, self.up = c, rng, {}, list(c.nodes())

    def node(self):
        return self.rng.choice(self.up)

    def some_key(self):
        """Few letters, so that keys are prefixes of one another, and share groups of many sizes."""
        while True:
            key = b"/".join(self.rng.choice(PARTS) for _ in range(self.rng.randint(1, 4)))
            if key:
                return key

    def put(self, key):
        size = self.rng.randint(0, 99)
        a = self.c.http("PUT", "/kv/" + quote(key), b"x" * size, node=self.node())
        assert a.status in (200, 201), (key, a)
        self.live[key] = size

    def delete(self, key):
        eq(self.c.http("DELETE", "/kv/" + quote(key), node=self.node()).status, 204, repr(key))
        del self.live[key]

    def fill(self):
        keys = set()
        while len(keys) < N_KEYS:
            keys.add(self.some_key())
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(self.put, sorted(keys)))

    def page(self, prefix, delimiter, limit, after):
        """(keys with sizes, prefixes, next or None), all of them bytes."""
        query = f"prefix={quote(prefix)}&limit={limit}" + ("&delimiter=/" if delimiter else "")
        if after:
            query += f"&start_after_base64={urllib.parse.quote(base64.b64encode(after).decode())}"
        a = self.c.http("GET", f"/kv?{query}", node=self.node())
        eq(a.status, 200, str(a))
        got = a.json()
        keys = [(k["key"].encode() if "key" in k else base64.b64decode(k["key_base64"]), k["size"]) for k in got["keys"]]
        prefixes = [p.encode() for p in got["prefixes"]]
        prefixes += [base64.b64decode(p) for p in got.get("prefixes_base64", ())]
        after = base64.b64decode(got["next_base64"]) if "next_base64" in got else got["next"] and got["next"].encode()
        return keys, prefixes, after

    def expected(self, prefix, delimiter, after):
        keys, prefixes = {}, set()
        for key, size in self.live.items():
            group = group_of(key, prefix) if delimiter else None
            if not key.startswith(prefix) or key <= after or (group and after.startswith(group)):
                continue
            if group:
                prefixes.add(group)
            else:
                keys[key] = size
        return keys, prefixes


def group_of(key, prefix):
    slash = key.find(b"/", len(prefix))
    return key[: slash + 1] if key.startswith(prefix) and slash >= 0 else None


def walk(m, prefix, delimiter, limit, between):
    """All pages; between(next) is called after each. Checks what holds of every page by itself."""
    keys, prefixes, after, n_pages = [], [], b"", 0
    while after is not None:
        page_keys, page_prefixes, following = m.page(prefix, delimiter, limit, after)
        names = [k for k, _ in page_keys] + page_prefixes
        assert len(names) <= limit, names
        assert all(n.startswith(prefix) and n > after for n in names), (after, names)
        assert following is None or (names and following >= max(names)), (following, names)
        eq([k for k, _ in page_keys], sorted(k for k, _ in page_keys), "order of keys")
        eq(page_prefixes, sorted(page_prefixes) if all(map(is_utf8, page_prefixes)) else page_prefixes, "of prefixes")
        keys += page_keys
        prefixes += page_prefixes
        after = following
        n_pages += 1
        assert n_pages <= 3 * N_KEYS, "it never ends"
        if after is not None:
            between(after)
    names = [k for k, _ in keys] + prefixes
    eq(len(names), len(set(names)), f"each once: {[n for n in names if names.count(n) > 1][:3]}")
    return dict(keys), set(prefixes), n_pages


def is_utf8(b):
    try:
        b.decode()
    except UnicodeDecodeError:
        return False
    return True


def some_walk(m):
    """Where a walk begins: a prefix that there is or may be, rolled up or not, with pages of any length."""
    key = m.some_key()
    prefix = key[: m.rng.randint(0, len(key))] if m.rng.random() < 0.5 else b""
    return prefix, m.rng.random() < 0.5, m.rng.choice([1, 2, 3, 7, 20, 1000])


def check_walk(m, change):
    """A walk while change(marker, seen) goes on: what lived all the time is there once, what never did is not."""
    prefix, delimiter, limit = some_walk(m)
    what = f"seed {SEED}: prefix {prefix!r}, delimiter {delimiter}, limit {limit}"
    before = dict(m.live)
    ever = set(before)

    def between(marker):
        change(marker)
        ever.update(m.live)

    try:
        keys, prefixes, n_pages = walk(m, prefix, delimiter, limit, between)
    except AssertionError as e:
        raise AssertionError(f"{what}: {e}") from e
    always = {k: size for k, size in before.items() if m.live.get(k) == size and k not in m.touched}
    for k, size in always.items():
        if not k.startswith(prefix):
            continue
        group = group_of(k, prefix) if delimiter else None
        assert group in prefixes if group else keys.get(k) == size, f"{what}: {k!r} is missing"
    for k in keys:
        assert k in ever, f"{what}: {k!r} never was"
    for p in prefixes:
        assert any(k.startswith(p) for k in ever), f"{what}: nothing ever was in {p!r}"
    return n_pages


def quiet(t, m):
    with t.claim("from any node, from any position, whether a key or not: exactly the keys behind it, in pages of any length"):
        for _ in range(WALKS):
            prefix, delimiter, limit = some_walk(m)
            after = m.some_key() if m.rng.random() < 0.7 else m.some_key()[:2] + bytes([m.rng.randint(0, 255)])
            what = f"seed {SEED}: prefix {prefix!r}, delimiter {delimiter}, limit {limit}, after {after!r}"
            eq(walk(m, prefix, delimiter, limit, lambda _: None)[:2], m.expected(prefix, delimiter, b""), what)
            keys, prefixes, _ = m.page(prefix, delimiter, 1000, after)
            eq((dict(keys), set(prefixes)), m.expected(prefix, delimiter, after), what)


def changing(t, m):
    with t.claim("while keys are deleted and made between pages, the marker among them, nothing is skipped or repeated"):
        n_pages = 0
        for _ in range(WALKS):
            m.touched = set()

            def change(marker):
                for _ in range(m.rng.randint(0, 4) if len(m.live) > N_KEYS * 2 // 3 else 0):
                    key = m.rng.choice(sorted(m.live))
                    m.touched.add(key)
                    m.delete(key)
                if marker in m.live and m.rng.random() < 0.7:
                    m.touched.add(marker)
                    m.delete(marker)
                for _ in range(m.rng.randint(0, 4)):
                    key = m.some_key()
                    m.touched.add(key)
                    m.put(key)

            # Enough pages for something to happen, not one of 300 each with changes.
            n_pages += check_walk(m, change)
        print(f"# {n_pages} pages, {len(m.live)} keys in the end", flush=True)

    with t.claim("nor while clients delete and make keys all the time"):
        stop, churned = threading.Event(), [b"churn/" + b"/".join((b"d%d" % (i % 5), b"k%d" % i)) for i in range(40)]
        failed = []

        def churn(seed):
            rng = random.Random(seed)
            while not stop.is_set():
                key = rng.choice(churned)
                how = rng.choice(["PUT", "DELETE"])
                a = m.c.http(how, "/kv/" + quote(key), b"x" if how == "PUT" else None, node=rng.choice(m.up))
                if a.status not in (200, 201, 204, 404):
                    failed.append((how, key, a))

        for i in range(0, 40, 4):
            key = b"churn/d%d/stays%d" % (i % 5, i)
            m.put(key)
        stays = {k: v for k, v in m.live.items() if k.startswith(b"churn/")}
        threads = [threading.Thread(target=churn, args=(SEED + i,)) for i in range(3)]
        for th in threads:
            th.start()
        try:
            for i in range(WALKS):
                keys, prefixes, _ = walk(m, b"churn/", i % 2 == 0, m.rng.choice([1, 3, 10]), lambda _: None)
                if i % 2 == 0:
                    eq(prefixes, {b"churn/d%d/" % d for d in range(5)}, f"seed {SEED}")
                else:
                    eq({k: v for k, v in keys.items() if k in stays}, stays, f"seed {SEED}")
                    assert set(keys) <= set(stays) | set(churned), keys
        finally:
            stop.set()
            for th in threads:
                th.join()
        eq(failed[:3], [], "the clients")


def failing(t, c, m):
    with t.claim("with a node down the listing is as complete as ever"):
        for key in list(m.live):
            if key.startswith(b"churn/"):
                m.delete(key)
        c.kill9(4)
        m.up.remove(4)
        m.put(m.some_key())
        for key in m.rng.sample(sorted(m.live), 5):
            m.delete(key)
        got = walk(m, b"", False, 50, lambda _: None)[0]
        eq({k: v for k, v in got.items() if not k.startswith(b"churn/")}, m.live, f"seed {SEED}")
    with t.claim("with a second one down it is 503 within the timeout, on every page of every walk: never a part"):
        c.kill9(3)
        m.up.remove(3)
        for query in ("", "?delimiter=/", "?prefix=a", "?limit=1", "?start_after=b&limit=2", "?prefix=none/such"):
            a = c.http("GET", f"/kv{query}", node=m.node())
            eq((a.status, a.headers["Retry-After"]), (503, "1"), query)
    with t.claim("and complete again, with what was deleted meanwhile still gone, when they are back"):
        c.start(3, 4)
        m.up += [3, 4]
        got = wait_until(lambda: c.http("GET", "/kv?limit=1").status == 200 and walk(m, b"", False, 50, lambda _: None)[0],
                         20, "a listing")
        eq({k: v for k, v in got.items() if not k.startswith(b"churn/")}, m.live, f"seed {SEED}")


def long_keys(t, m):
    with t.claim("keys that fill more than a node tells at once are all there, in order, whatever the limit"):
        keys = {b"long/%03d" % i + b"k" * 4000 for i in range(300)}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(m.put, sorted(keys)))
        for limit in (1000, 290, 100):
            got, _, n_pages = walk(m, b"long/", False, limit, lambda _: None)
            eq(set(got), keys, f"limit {limit}")
            assert n_pages >= len(keys) // limit, n_pages


with Claims() as t, Cluster(n=4, rf=3, base_port=20550, fsync="never") as c:
    print(f"# seed {SEED}", flush=True)
    m = Model(c, random.Random(SEED))
    m.fill()
    quiet(t, m)
    changing(t, m)
    long_keys(t, m)
    failing(t, c, m)
