/* options.c - kvnode's command line. */
#include "node/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECONDS_MAX 315360000u /* ten years */

static const char usage[] =
    "usage: kvnode --id ID [--config FILE] [--data DIR] [--store STORE] [--fsync MODE] "
    "[--no-forward]\n"
    "              [--scrub-period SECONDS] [--tombstone-age SECONDS] [--accept-data-loss]\n"
    "       kvnode --gateway HOST:PORT [--config FILE]\n"
    "\n"
    "A storage node of a kvfs cluster, or a gateway: a router without storage.\n"
    "\n"
    "  --id ID              which node of the cluster this is\n"
    "  --config FILE        the cluster (default: cluster.json)\n"
    "  --data DIR           where it keeps its data (default: data-ID)\n"
    "  --store STORE        rocksdb (default); memory: gone when it stops; or\n"
    "                       redis://[USER@]HOST:PORT/DB: a Redis of this node's own\n"
    "  --redis-password-file FILE   whose first line is the password (else the environment's\n"
    "                       " REDIS_PASSWORD_ENV ")\n"
    "  --fsync MODE         always (default): what is acknowledged is on the disk;\n"
    "                       everysec, never: a power loss may take the last of it\n"
    "  --no-forward         answer 421 for keys that this node has no replica of\n"
    "  --scrub-period SECONDS   within which all data is read and verified (default: 604800)\n"
    "  --tombstone-age SECONDS  after which what was deleted may be forgotten (default: 86400;\n"
    "                       far longer than any message can be under way)\n"
    "  --accept-data-loss   recover without the nodes that it waits for, and without what only\n"
    "                       they had\n"
    "  --gateway HOST:PORT  serve clients at this address, keep nothing\n"
    "  --help, --version\n"
    "\n"
    "Options may be written with one dash as well.\n";

enum {
    OPT_CONFIG = 256,
    OPT_ID,
    OPT_DATA,
    OPT_STORE,
    OPT_REDIS_PASSWORD_FILE,
    OPT_FSYNC,
    OPT_GATEWAY,
    OPT_NO_FORWARD,
    OPT_SCRUB_PERIOD,
    OPT_TOMBSTONE_AGE,
    OPT_ACCEPT_DATA_LOSS,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"config", required_argument, NULL, OPT_CONFIG},
    {"id", required_argument, NULL, OPT_ID},
    {"data", required_argument, NULL, OPT_DATA},
    {"store", required_argument, NULL, OPT_STORE},
    {"redis-password-file", required_argument, NULL, OPT_REDIS_PASSWORD_FILE},
    {"fsync", required_argument, NULL, OPT_FSYNC},
    {"gateway", required_argument, NULL, OPT_GATEWAY},
    {"no-forward", no_argument, NULL, OPT_NO_FORWARD},
    {"scrub-period", required_argument, NULL, OPT_SCRUB_PERIOD},
    {"tombstone-age", required_argument, NULL, OPT_TOMBSTONE_AGE},
    {"accept-data-loss", no_argument, NULL, OPT_ACCEPT_DATA_LOSS},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static int __attribute__((format(printf, 1, 2))) complain(const char *fmt, ...)
{
    va_list ap;

    fputs("kvnode: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputs(" (see --help)\n", stderr);
    return 2;
}

static int take_store(const char *arg, struct options *o)
{
    struct redis_url url;
    struct err err;

    o->store = STORE_KIND_ROCKSDB;
    if (strcmp(arg, "rocksdb") == 0)
        return -1;
    o->store = STORE_KIND_MEMORY;
    if (strcmp(arg, "memory") == 0)
        return -1;
    o->store = STORE_KIND_REDIS;
    if (strncmp(arg, "redis", 5) != 0)
        return complain("--store %s: it is rocksdb, memory, or redis://HOST:PORT/DB", arg);
    if (redis_url_parse(arg, &url, &err) < 0)
        return complain("--store: %s", err.msg); /* what was given may have a password in it */
    redis_url_fini(&url);
    o->redis = arg;
    return -1;
}

static int take_fsync(const char *arg, struct options *o)
{
    static const char *const modes[] = {[STORE_FSYNC_ALWAYS] = "always",
                                        [STORE_FSYNC_EVERYSEC] = "everysec",
                                        [STORE_FSYNC_NEVER] = "never"};

    for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(arg, modes[i]) == 0) {
            o->fsync = (enum store_fsync)i;
            return -1;
        }
    }
    return complain("--fsync %s: it is always, everysec or never", arg);
}

static int take_seconds(const char *name, const char *arg, uint64_t *out)
{
    unsigned long long s;
    char *end;

    errno = 0;
    s = strtoull(arg, &end, 10);
    if (!isdigit((unsigned char)arg[0]) || *end != '\0' || errno != 0 || s < 1 || s > SECONDS_MAX)
        return complain("--%s %s: it is a number of seconds, 1 to %u", name, arg, SECONDS_MAX);
    *out = s;
    return -1;
}

static int take_option(int opt, struct options *o)
{
    switch (opt) {
    case OPT_CONFIG:
        o->config = optarg;
        return -1;
    case OPT_ID:
        o->id = optarg;
        return -1;
    case OPT_DATA:
        o->data = optarg;
        return -1;
    case OPT_STORE:
        return take_store(optarg, o);
    case OPT_REDIS_PASSWORD_FILE:
        o->redis_password_file = optarg;
        return -1;
    case OPT_FSYNC:
        return take_fsync(optarg, o);
    case OPT_GATEWAY:
        o->gateway = optarg;
        return -1;
    case OPT_NO_FORWARD:
        o->forward = false;
        return -1;
    case OPT_SCRUB_PERIOD:
        return take_seconds("scrub-period", optarg, &o->scrub_period_s);
    case OPT_TOMBSTONE_AGE:
        return take_seconds("tombstone-age", optarg, &o->tombstone_age_s);
    case OPT_ACCEPT_DATA_LOSS:
        o->accept_data_loss = true;
        return -1;
    case OPT_HELP:
        fputs(usage, stdout);
        return 0;
    case OPT_VERSION:
        puts("kvnode " KVFS_VERSION);
        return 0;
    default: /* getopt has said what is wrong */
        return 2;
    }
}

int options_parse(int argc, char **argv, struct options *out)
{
    struct options o = {.config = "cluster.json",
                        .fsync = STORE_FSYNC_ALWAYS,
                        .forward = true,
                        .tombstone_age_s = 86400,
                        .scrub_period_s = 604800};
    bool stores = false; /* an option of the store was given */
    int opt, code, index = 0;

    while ((opt = getopt_long_only(argc, argv, "", long_options, &index)) != -1) {
        if (optarg != NULL && optarg[0] == '\0')
            return complain("--%s: the value is empty", long_options[index].name);
        stores |= opt == OPT_STORE || opt == OPT_FSYNC || opt == OPT_SCRUB_PERIOD ||
                  opt == OPT_TOMBSTONE_AGE || opt == OPT_ACCEPT_DATA_LOSS;
        code = take_option(opt, &o);
        if (code >= 0)
            return code;
    }
    if (optind < argc)
        return complain("unexpected argument %s", argv[optind]);
    if (o.id == NULL && o.gateway == NULL)
        return complain("which node is this? --id ID, or --gateway HOST:PORT");
    if (o.id != NULL && o.gateway != NULL)
        return complain("--id and --gateway exclude each other");
    if (o.gateway != NULL && (o.data != NULL || stores || !o.forward))
        return complain("a gateway has no --data, --store, --fsync, --no-forward, --scrub-period, "
                        "--tombstone-age and --accept-data-loss");
    if (o.redis_password_file != NULL && o.store != STORE_KIND_REDIS)
        return complain("--redis-password-file is for --store redis://HOST:PORT/DB");
    *out = o;
    return -1;
}
