"""linear.py - the judge of a history: could the operations on one key have been done one at a time?

A value is a tuple of tokens, each unique in the run: ("p7", "a9") was put by p7, then appended to by a9; () is the empty
value, None an absent key. An operation was done at one moment between its start and its end, if it was done.

As a program it reads paths from stdin, each a pickle {key: [Op, ...]}, and answers with a line of JSON for each.
"""
import json
import pickle
import sys

NEVER = float("inf")
N_STATES_MAX = 2_000_000  # beyond it the judge gives up, and says so

WRITES = ("put", "append", "create", "match")


class Op:
    """One operation on one key.

    kind   get, put, append, create (only where absent), match (only over what it saw), delete (only where present)
    token  what it writes; None with create: an empty value
    old    match: the value that its If-Match stands for
    out    ok; failed: its condition did not hold; none: certainly not done; unknown: perhaps done, perhaps later
    value  get: what it saw
    who    for people
    """

    __slots__ = ("kind", "token", "old", "start", "end", "out", "value", "who")

    def __init__(self, kind, token=None, old=None, start=0.0, who=""):
        self.kind, self.token, self.old, self.start, self.who = kind, token, old, start, who
        self.end, self.out, self.value = NEVER, "unknown", None

    def __repr__(self):
        end = "never     " if self.end == NEVER else f"{self.end:.6f}"
        saw = f" {self.value}" if self.kind == "get" else f" old={self.old}" if self.kind == "match" else ""
        return f"{self.start:.6f}..{end} {self.who:8} {self.kind:6} {self.token or '':8} {self.out:7}{saw}"


class Verdict:
    """good: True, False, or None where the judge gave up. stuck: the operation that fits nowhere; why: for people."""

    def __init__(self, good, why="", stuck=None):
        self.good, self.why, self.stuck = good, why, stuck


# --- what there is to put in order ----------------------------------------------------------------


def _seen(ops):
    """Of each token, when it surely was there: the first read that saw it had ended."""
    seen = {}
    for op in ops:
        tokens, when = (op.value, op.end) if op.kind == "get" and op.out == "ok" else (op.old, op.start)
        for token in tokens or ():
            seen[token] = min(seen.get(token, NEVER), when)
    return seen


def _sorted_out(ops, seen):
    """(firm, loose, hidden): operations that were done; starts of deletes and empty creations that may have been done
    at any time since, or never; and starts of writes of the same kind whose value nobody saw.

    Of a hidden write there is only this to tell: an absent key may have been there for a while.
    """
    firm, loose, hidden = [], {"delete": [], "create": []}, []
    for op in ops:
        if op.out == "none" or (op.kind == "get" and op.out != "ok"):
            continue
        end = op.end
        if op.out == "unknown":
            if op.token is None:
                loose[op.kind].append(op.start)
                continue
            if op.token not in seen:
                if op.kind != "match":  # that one needs a value, and leaves one
                    hidden.append(op.start)
                continue
            end = seen[op.token]
        firm.append((op.start, end, op))
    firm.sort(key=lambda f: f[:2])
    return firm, {kind: sorted(starts) for kind, starts in loose.items()}, sorted(hidden)


# --- values as small numbers ----------------------------------------------------------------------


ABSENT, HIDDEN = 0, 1


class _Values:
    def __init__(self):
        self.tuples = [None, ("written by somebody, seen by nobody",)]
        self.numbers = {v: i for i, v in enumerate(self.tuples)}
        self.longer = {}

    def number(self, value):
        n = self.numbers.get(value)
        if n is None:
            n = self.numbers[value] = len(self.tuples)
            self.tuples.append(value)
        return n

    def appended(self, number, token):
        n = self.longer.get((number, token))
        if n is None:
            n = self.longer[number, token] = self.number((self.tuples[number] or ()) + (token,))
        return n


def _grounds(values, ops):
    """Of each appended token that a read saw: the values it can have been appended to."""
    grounds = {}
    for op in ops:
        saw = op.value if op.kind == "get" else op.old
        for i, token in enumerate(saw or ()):
            grounds[token] = {values.number(saw[:i])} | ({ABSENT} if i == 0 else set())
    return grounds


def _steps(values, op, grounds):
    """What op, done at once, makes of a value: a function from number to number, None where it cannot have gone so."""
    number = values.number
    if op.kind == "get":
        saw = number(op.value)
        return lambda v: v if v == saw else None
    if op.out == "failed":
        # If-Match names a version, and versions also change where the value does not: its refusal proves nothing.
        return {"match": lambda v: v, "create": lambda v: v if v != ABSENT else None,
                "delete": lambda v: v if v == ABSENT else None}[op.kind]
    new = number(() if op.token is None else (op.token,))
    old, ground = number(op.old), grounds.get(op.token)
    return {
        "put": lambda v: new,
        "append": lambda v: values.appended(v, op.token) if ground is None or v in ground else None,
        "create": lambda v: new if v == ABSENT else None,
        "match": lambda v: new if v == old else None,
        "delete": lambda v: ABSENT if v != ABSENT else None,
    }[op.kind]


# --- the search -----------------------------------------------------------------------------------


class _Search:
    """Wing and Gong's search, depth first, over (operations done, value, loose and hidden ones used).

    State: (low, mask, value, n_deletes, n_empties, n_hidden): all firm operations below low are done, and those that
    mask tells of the ones from low on. Of the loose only their number matters: whichever has begun will do.
    """

    def __init__(self, firm, loose, hidden):
        self.n = len(firm)
        self.starts = [f[0] for f in firm]
        self.ends = [f[1] for f in firm]
        self.ops = [f[2] for f in firm]
        self.loose, self.hidden = loose, hidden
        self.values = _Values()
        grounds = _grounds(self.values, self.ops)
        self.steps = [_steps(self.values, op, grounds) for op in self.ops]
        self.empty = self.values.number(())
        self.furthest = 0

    def ahead(self, low, mask):
        """Which may be next, and until when: each began before any other ended."""
        found, limit, i = [], NEVER, low
        while i < self.n and self.starts[i] <= limit:
            if not mask & 1:
                found.append(i)
                limit = min(limit, self.ends[i])
            mask >>= 1
            i += 1
        return [i for i in found if self.starts[i] <= limit], limit

    @staticmethod
    def begun(starts, used, limit):
        return used < len(starts) and starts[used] <= limit

    def loose_steps(self, state, limit):
        low, mask, v, n_deletes, n_empties, n_hidden = state
        if v != ABSENT and self.begun(self.loose["delete"], n_deletes, limit):
            yield low, mask, ABSENT, n_deletes + 1, n_empties, n_hidden
        if v == ABSENT and self.begun(self.loose["create"], n_empties, limit):
            yield low, mask, self.empty, n_deletes, n_empties + 1, n_hidden
        if v == ABSENT and self.begun(self.hidden, n_hidden, limit):
            yield low, mask, HIDDEN, n_deletes, n_empties, n_hidden + 1

    @staticmethod
    def done(state, i, value):
        low, mask = state[0], state[1] | 1 << (i - state[0])
        while mask & 1:
            mask >>= 1
            low += 1
        return (low, mask, value) + state[3:]

    def next_states(self, state):
        """The most promising last. A loose one is done only right before one that goes otherwise then."""
        candidates, limit = self.ahead(state[0], state[1])
        found = []
        for other in self.loose_steps(state, limit):
            for i in candidates:
                after, without = self.steps[i](other[2]), self.steps[i](state[2])
                if after is not None and after != without:
                    found.append(self.done(other, i, after))
            found += [s for s in self.loose_steps(other, limit)]
        for i in reversed(candidates):
            after = self.steps[i](state[2])
            if after is None:
                continue
            if after == state[2]:
                return [self.done(state, i, after)]  # it changes nothing, so now is as good as ever
            found.append(self.done(state, i, after))
        return found

    def run(self):
        first = (0, 0, ABSENT, 0, 0, 0)
        stack, known = [first], {first}
        while stack:
            state = stack.pop()
            self.furthest = max(self.furthest, state[0])
            if state[0] == self.n:
                return True
            for s in self.next_states(state):
                if s not in known:
                    known.add(s)
                    stack.append(s)
            if len(known) > N_STATES_MAX:
                return None
        return False


def judge(ops):
    """The verdict on the history of one key, absent at first."""
    seen = _seen(ops)
    written = {op.token for op in ops if op.kind in WRITES and op.out in ("ok", "unknown")}
    strange = set(seen) - written
    if strange:
        return Verdict(False, f"a value that nobody wrote, or surely not: {sorted(strange)[:5]}",
                       next(op for op in ops if strange & set(op.value or ()) or strange & set(op.old or ())))
    search = _Search(*_sorted_out(ops, seen))
    good = search.run()
    if good:
        return Verdict(True)
    if good is None:
        return Verdict(None, f"undecided after {N_STATES_MAX} states")
    return Verdict(False, f"{search.furthest} of {search.n} operations can be put in order, no more",
                   search.ops[search.furthest])


def history_text(ops, verdict):
    """One line for each operation, as they began; an arrow stands before the one that fits nowhere."""
    lines = sorted(ops, key=lambda op: op.start)
    return "".join(f"{'>>>' if op is verdict.stuck else '   '} {op}\n" for op in lines) + verdict.why + "\n"


def main():
    for line in sys.stdin:
        path = line.rstrip("\n")
        with open(path, "rb") as f:
            histories = pickle.load(f)
        bad = []
        for key, ops in histories.items():
            verdict = judge(ops)
            if not verdict.good:
                where = f"{path}.{key}.txt"
                with open(where, "w", encoding="utf-8") as f:
                    f.write(history_text(ops, verdict))
                bad.append(f"{key}: {verdict.why}: {where}")
        print(json.dumps({"path": path, "keys": len(histories), "bad": bad}), flush=True)


if __name__ == "__main__":
    sys.modules["linear"] = sys.modules["__main__"]  # the name that the pickles know Op by
    main()
