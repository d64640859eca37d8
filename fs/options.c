/* options.c - the command line of kvfs, which is also what mount(8) calls. */
#include "fs/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/limits.h"
#include "common/nearest.h"

#define ATTR_TIMEOUT_DEFAULT_S 1.0
#define MAX_THREADS_DEFAULT 1024u
#define MAX_THREADS_LIMIT 16384u
#define TIMEOUT_LIMIT_MS 600000u
#define OPTION_NAME_MAX 64u

const char options_usage[] =
    "usage: kvfs CONFIG MOUNTPOINT [-o OPTION,...] [-f] [-d]\n"
    "\n"
    "Mounts the key-value store of the cluster that CONFIG (cluster.json) describes: a file's path "
    "is its key.\n"
    "\n"
    "  -f                    stay in the foreground, log to stderr\n"
    "  -d                    the same, and log every failed call\n"
    "  -o ro                 read only\n"
    "  -o allow_other        for all users; file modes decide (as with default_permissions)\n"
    "  -o default_permissions  let file modes decide who may do what\n"
    "  -o uid=N,gid=N,umask=N  owner and mask of keys that carry none (stored over HTTP)\n"
    "  -o attr_timeout=S     seconds for which the kernel may believe attributes of directories, "
    "while the nodes\n"
    "                        tell of changes (1); 0: nothing is kept, neither by the mount\n"
    "  -o timeout=S          seconds after which a call without a quorum of nodes fails (5)\n"
    "  -o read=quorum|one    who answers reads: a majority of the replicas; or the first live one, "
    "cheaper:\n"
    "                        it may be old\n"
    "  -o max_threads=N      calls that may wait for nodes at a time (1024)\n"
    "  -h, --help            this text\n"
    "  -V, --version         the version\n"
    "Exit codes are mount(8)'s: 1 for a wrong command line, 32 where mounting failed.\n";

/* --- values ----------------------------------------------------------------------------------- */

static int parse_u32(const char *name, const char *value, int base, uint32_t min, uint32_t max,
                     uint32_t *out, struct err *err)
{
    unsigned long long n;
    char *end;

    errno = 0;
    n = value != NULL ? strtoull(value, &end, base) : 0;
    if (value == NULL || *value < '0' || *value > '9' || *end != 0 || errno != 0 || n < min ||
        n > max)
        return err_set(err, -EINVAL, "option %s: '%s' is not a number from %u to %u", name,
                       value != NULL ? value : "", min, max);
    *out = (uint32_t)n;
    return 0;
}

/* Seconds, also parts of them. */
static int parse_seconds(const char *name, const char *value, double max, double *out,
                         struct err *err)
{
    double n;
    char *end;

    n = value != NULL ? strtod(value, &end) : 0;
    if (value == NULL || *value < '0' || *value > '9' || *end != 0 || !(n >= 0 && n <= max))
        return err_set(err, -EINVAL, "option %s: '%s' is not a number of seconds from 0 to %g",
                       name, value != NULL ? value : "", max);
    *out = n;
    return 0;
}

static int set_uid(struct options *o, const char *value, struct err *err)
{
    return parse_u32("uid", value, 10, 0, UINT32_MAX - 1, &o->uid, err);
}

static int set_gid(struct options *o, const char *value, struct err *err)
{
    return parse_u32("gid", value, 10, 0, UINT32_MAX - 1, &o->gid, err);
}

static int set_umask(struct options *o, const char *value, struct err *err)
{
    return parse_u32("umask", value, 8, 0, 0777, &o->umask, err);
}

static int set_attr_timeout(struct options *o, const char *value, struct err *err)
{
    return parse_seconds("attr_timeout", value, 86400, &o->attr_timeout_s, err);
}

static int set_timeout(struct options *o, const char *value, struct err *err)
{
    double s = 0;
    int code = parse_seconds("timeout", value, TIMEOUT_LIMIT_MS / 1000.0, &s, err);

    if (code == 0 && s < 0.001)
        code = err_set(err, -EINVAL, "option timeout: no call can be answered in %s s", value);
    if (code == 0)
        o->timeout_ms = (uint32_t)(s * 1000);
    return code;
}

static int set_max_threads(struct options *o, const char *value, struct err *err)
{
    uint32_t n = 0;
    int code = parse_u32("max_threads", value, 10, 1, MAX_THREADS_LIMIT, &n, err);

    if (code == 0)
        o->max_threads = n;
    return code;
}

static int set_read(struct options *o, const char *value, struct err *err)
{
    o->read_one = value != NULL && strcmp(value, "one") == 0;
    if (o->read_one || (value != NULL && strcmp(value, "quorum") == 0))
        return 0;
    return err_set(err, -EINVAL, "option read: '%s' is neither quorum nor one",
                   value != NULL ? value : "");
}

static int set_allow_other(struct options *o, const char *value, struct err *err)
{
    (void)value;
    (void)err;
    /* Others are let in, but not to what its owner keeps to himself. */
    buf_add_str(&o->fuse, "allow_other,default_permissions,");
    return 0;
}

/* --- the table -------------------------------------------------------------------------------- */

static const struct option_kind {
    const char *name;
    int (*set)(struct options *o, const char *value, struct err *err); /* NULL: */
    bool pass;  /* it is the kernel's; else nothing is to be done: it is mount(8)'s own, or how
                   things are anyway */
    bool value; /* takes one */
} kinds[] = {
    {"uid", set_uid, false, true},
    {"gid", set_gid, false, true},
    {"umask", set_umask, false, true},
    {"attr_timeout", set_attr_timeout, false, true},
    {"timeout", set_timeout, false, true},
    {"read", set_read, false, true},
    {"max_threads", set_max_threads, false, true},
    {"allow_other", set_allow_other, false, false},
    {"default_permissions", NULL, true, false},
    {"ro", NULL, true, false},
    {"rw", NULL, true, false},
    {"suid", NULL, true, false},
    {"nosuid", NULL, true, false},
    {"dev", NULL, true, false},
    {"nodev", NULL, true, false},
    {"exec", NULL, true, false},
    {"noexec", NULL, true, false},
    {"atime", NULL, true, false},
    {"noatime", NULL, true, false},
    {"sync", NULL, true, false},
    {"async", NULL, true, false},
    {"dirsync", NULL, true, false},
    {"auto_unmount", NULL, true, false},
    {"auto", NULL, false, false},
    {"noauto", NULL, false, false},
    {"user", NULL, false, false},
    {"nouser", NULL, false, false},
    {"users", NULL, false, false},
    {"owner", NULL, false, false},
    {"group", NULL, false, false},
    {"_netdev", NULL, false, false},
    {"nofail", NULL, false, false},
    {"defaults", NULL, false, false},
    {"relatime", NULL, false, false},
    {"norelatime", NULL, false, false},
    {"strictatime", NULL, false, false},
    {"diratime", NULL, false, false},
    {"nodiratime", NULL, false, false},
    {"loud", NULL, false, false},
    {"silent", NULL, false, false},
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

static int refuse(const char *name, struct err *err)
{
    size_t best = SIZE_MAX;
    const char *nearest = "";

    for (size_t i = 0; i < N_KINDS; i++) {
        size_t d = nearest_distance(name, kinds[i].name);

        if (d < best) {
            best = d;
            nearest = kinds[i].name;
        }
    }
    return err_set(err, -EINVAL, "unknown option '%s', did you mean '%s'?", name, nearest);
}

/* One option, NAME or NAME=VALUE; the text is changed. */
static int parse_option(struct options *o, char *text, struct err *err)
{
    char *value = strchr(text, '=');

    /* Words for other programs that read fstab. */
    if (strncmp(text, "x-", 2) == 0 || strncmp(text, "comment=", 8) == 0)
        return 0;
    if (value != NULL)
        *value++ = 0;
    if (strlen(text) > OPTION_NAME_MAX)
        return err_set(err, -EINVAL, "unknown option '%.40s...'", text);
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i].name, text) != 0)
            continue;
        if (!kinds[i].value && value != NULL)
            return err_set(err, -EINVAL, "option %s takes no value", text);
        if (kinds[i].set != NULL)
            return kinds[i].set(o, value, err);
        if (kinds[i].pass)
            buf_addf(&o->fuse, "%s,", text);
        return 0;
    }
    return refuse(text, err);
}

static int parse_list(struct options *o, char *list, struct err *err)
{
    char *save = NULL;

    for (char *text = strtok_r(list, ",", &save); text != NULL; text = strtok_r(NULL, ",", &save)) {
        int code = parse_option(o, text, err);

        if (code < 0)
            return code;
    }
    return 0;
}

/* --- the command line ------------------------------------------------------------------------- */

static int parse_flags(int argc, char **argv, struct options *o, struct err *err)
{
    static const struct option names[] = {
        {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'V'}, {NULL, 0, NULL, 0}};
    int c, code = 0;

    opterr = 0;
    while (code == 0 && (c = getopt_long(argc, argv, ":o:fdhVnsv", names, NULL)) != -1) {
        switch (c) {
        case 'o':
            code = parse_list(o, optarg, err);
            break;
        case 'd':
            o->debug = o->foreground = true;
            break;
        case 'f':
            o->foreground = true;
            break;
        case 'h':
            o->help = true;
            break;
        case 'V':
            o->version = true;
            break;
        case 'n': /* of mount(8): not into mtab, sloppy, verbose */
        case 's':
        case 'v':
            break;
        case ':':
            code = err_set(err, -EINVAL, "-%c needs an argument", optopt);
            break;
        default:
            code = optopt != 0 ? err_set(err, -EINVAL, "unknown flag -%c", optopt)
                               : err_set(err, -EINVAL, "unknown flag %s", argv[optind - 1]);
        }
    }
    return code;
}

int options_parse(int argc, char **argv, struct options *out, struct err *err)
{
    int code;

    *out = (struct options){.uid = getuid(),
                            .gid = getgid(),
                            .umask = 022,
                            .attr_timeout_s = ATTR_TIMEOUT_DEFAULT_S,
                            .timeout_ms = TIMEOUT_DEFAULT_MS,
                            .max_threads = MAX_THREADS_DEFAULT};
    code = parse_flags(argc, argv, out, err);
    if (code < 0 || out->help || out->version)
        return code;
    if (argc - optind != 2)
        return err_set(err, -EINVAL,
                       argc - optind < 2 ? "CONFIG and MOUNTPOINT are needed"
                                         : "too many arguments");
    out->config = argv[optind];
    out->mountpoint = argv[optind + 1];
    if (strncmp(out->config, "kvfs#", 5) == 0) /* fstab's old way of naming the program */
        out->config += 5;
    if (out->fuse.len > 0)
        out->fuse.len--; /* the last comma */
    buf_u8(&out->fuse, 0);
    return out->fuse.err;
}

void options_fini(struct options *o)
{
    buf_fini(&o->fuse);
}
