"""test_builds.py - C projects are configured and built in a mount, with make and with meson; a second build does nothing, a change just its part."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from kvtest import Claims, Cluster, eq

N_UNITS = 12

MAKEFILE = """\
units := $(sort $(patsubst %.c,%.o,$(wildcard src/*.c)))
all: program
program: $(units) lib.a
\t$(CC) -o $@ $(units) lib.a
lib.a: lib/one.o lib/two.o
\trm -f $@
\tar rc $@ $^
%.o: %.c
\t$(CC) -O -MMD -I. -c -o $@ $<
-include $(units:.o=.d)
"""

MESON = """\
project('small', 'c', default_options: ['buildtype=debugoptimized'])
lib = static_library('two', 'lib/one.c', 'lib/two.c')
conf = configuration_data()
conf.set('ANSWER', 42)
configure_file(output: 'config.h', configuration: conf)
program = executable('program', run_command('sh', '-c', 'ls src/*.c', check: true).stdout().strip().split('\\n'), link_with: lib)
test('it runs', program)
"""


def project(top):
    """A program of some units and headers, a library, and what make and meson need."""
    (top / "src").mkdir(parents=True)
    (top / "lib").mkdir()
    (top / "Makefile").write_text(MAKEFILE)
    (top / "meson.build").write_text(MESON)
    (top / "lib/one.c").write_text("int one(void); int one(void) { return 1; }\n")
    (top / "lib/two.c").write_text("int two(void); int two(void) { return 2; }\n")
    for k in range(N_UNITS):
        (top / f"src/u{k:02}.h").write_text(f"int u{k}(int);\n")
        (top / f"src/u{k:02}.c").write_text(
            f'#include <stdio.h>\n#include "u{k:02}.h"\n#include "u{(k + 1) % N_UNITS:02}.h"\n'
            f"int u{k}(int n) {{ return n <= 0 ? {k} : u{(k + 1) % N_UNITS}(n - 1) + 1; }}\n")
    (top / "src/main.c").write_text(
        '#include <stdio.h>\n#include "u00.h"\nint one(void); int two(void);\n'
        'int main(void) { printf("%d\\n", u0(5) + one() + two()); return 0; }\n')


def run(*command, at):
    env = {**os.environ, "LC_ALL": "C", "CCACHE_DISABLE": "1", "CC": "gcc"}
    r = subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, timeout=200, check=False)
    if r.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {r.returncode}: {(r.stdout + r.stderr)[-300:]}")
    return r.stdout


def objects(text):
    """What was compiled, of what make or ninja says."""
    return sorted({w.rsplit("/", 1)[-1].removesuffix(".c") for w in text.replace("_u", "/u").split() if w.endswith(".c")})


with Claims() as t, Cluster(base_port=21830) as c:
    mnt = c.mount().path

    with t.claim("make builds a project, which runs; the second time there is nothing to do"):
        top = mnt / "make"
        project(top)
        eq(len(objects(run("make", "-j4", at=top))), N_UNITS + 3)
        eq(run("./program", at=top), "13\n")
        eq("Nothing to be done" in run("make", at=top), True)
        eq("Nothing to be done" in run("make", at=c.mount("other").path / "make"), True, "through another mount")

    with t.claim("what a changed header is included by is compiled again, and no more"):
        with open(top / "src/u03.h", "a", encoding="ascii") as f:
            f.write("/* changed */\n")
        eq(objects(run("make", at=top)), ["u02", "u03"])
        run("touch", "src/u05.c", at=top)
        eq(objects(run("make", "-j2", at=top)), ["u05"])
        eq("Nothing to be done" in run("make", at=top), True)
        eq(run("./program", at=top), "13\n")

    with t.claim("meson configures and ninja builds and tests a project; the second time there is nothing to do"):
        top = mnt / "meson"
        project(top)
        run("meson", "setup", "build", at=top)
        run("ninja", "-C", "build", at=top)
        eq(run("build/program", at=top), "13\n")
        run("meson", "test", "-C", "build", at=top)
        eq("no work to do" in run("ninja", "-C", "build", at=top), True)

    with t.claim("a change is built, and reconfiguring leaves nothing to do"):
        with open(top / "src/u03.h", "a", encoding="ascii") as f:
            f.write("/* changed */\n")
        eq(objects(run("ninja", "-v", "-C", "build", at=top)), ["u02", "u03"])
        run("meson", "setup", "--reconfigure", "build", at=top)
        eq("no work to do" in run("ninja", "-C", "build", at=top), True)
        run("ninja", "-C", "build", "clean", at=top)
        run("ninja", "-C", "build", at=top)
        eq(run("build/program", at=top), "13\n")

    with t.claim("a program that runs goes on when it is replaced"):
        run("sh", "-c", "cp $(command -v sleep) busy", at=mnt)
        p = subprocess.Popen([str(mnt / "busy"), "100"])
        try:
            eq(subprocess.run(["sh", "-c", "cp /bin/true new && mv new busy && ./busy"], cwd=mnt, check=False).returncode, 0)
            eq(p.poll(), None)
        finally:
            p.kill()
            p.wait()
