/* redis_info.c - what a Redis says of itself. */
#include "node/redis_info.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

static void copy_text(char *out, size_t cap, struct span s)
{
    size_t n = s.len < cap ? s.len : cap - 1;

    if (n > 0)
        memcpy(out, s.data, n);
    out[n] = '\0';
}

/* Of the lines "name:value\r\n" the one of that name. */
static struct span info_field(struct span info, const char *name)
{
    size_t len = strlen(name);

    while (info.len > 0) {
        const uint8_t *end = memchr(info.data, '\n', info.len);
        size_t n = end != NULL ? (size_t)(end - info.data) : info.len, rest;

        if (n > len && memcmp(info.data, name, len) == 0 && info.data[len] == ':') {
            struct span value = span_of(info.data + len + 1, n - len - 1);

            if (value.len > 0 && value.data[value.len - 1] == '\r')
                value.len--;
            return value;
        }
        rest = end != NULL ? n + 1 : n;
        info = span_of(info.data + rest, info.len - rest);
    }
    return (struct span){0};
}

static uint64_t info_number(struct span info, const char *name)
{
    char text[24];

    copy_text(text, sizeof(text), info_field(info, name));
    return strtoull(text, NULL, 10);
}

static struct redis_memory memory_of(struct span info)
{
    struct redis_memory m = {info_number(info, "used_memory"), info_number(info, "maxmemory")};

    if (m.total == 0)
        m.total = info_number(info, "total_system_memory");
    return m;
}

static void take_info(struct redis_info *s, struct span info)
{
    copy_text(s->run_id, sizeof(s->run_id), info_field(info, "run_id"));
    copy_text(s->policy, sizeof(s->policy), info_field(info, "maxmemory_policy"));
    copy_text(s->role, sizeof(s->role), info_field(info, "role"));
    s->major = (int)info_number(info, "redis_version");
    s->clustered = info_number(info, "cluster_enabled") != 0;
    s->aof_off = span_eq(info_field(info, "aof_enabled"), span_str("0"));
    s->rewriting = info_number(info, "aof_rewrite_in_progress") != 0 ||
                   info_number(info, "aof_rewrite_scheduled") != 0;
    s->memory = memory_of(info);
}

static void take_config(struct redis_info *s, const struct redis_reply *config)
{
    s->has_config |= redis_reply_len(config) > 0;
    for (size_t i = 0; i + 1 < redis_reply_len(config); i += 2) {
        struct span name = redis_reply_bytes(redis_reply_at(config, i));
        struct span value = redis_reply_bytes(redis_reply_at(config, i + 1));

        if (span_eq(name, span_str("maxmemory-policy")) && s->policy[0] == '\0')
            copy_text(s->policy, sizeof(s->policy), value);
        if (span_eq(name, span_str("appendonly")))
            s->aof = span_eq(value, span_str("yes"));
        if (span_eq(name, span_str("no-appendfsync-on-rewrite")))
            s->lax = span_eq(value, span_str("yes"));
        if (span_eq(name, span_str("appendfsync"))) {
            s->always = span_eq(value, span_str("always"));
            s->everysec = span_eq(value, span_str("everysec"));
        }
    }
}

/* Who may not ask (an ACL) gets an error, and goes on with what is known then. */
int redis_info_ask(struct redis_link *l, struct redis_info *out, struct err *err)
{
    struct redis_reply *info = NULL, *config = NULL, *policy = NULL;
    struct redis_info s = {0};
    int ret = redis_link_add_text(l, "INFO", NULL);

    if (ret == 0)
        ret = redis_link_add_text(l, "CONFIG", "GET", "*append*", NULL);
    if (ret == 0)
        ret = redis_link_add_text(l, "CONFIG", "GET", "maxmemory-policy", NULL);
    if (ret < 0)
        return err_set(err, ret, "no memory");
    ret = redis_link_next(l, &info, err);
    if (ret == 0)
        ret = redis_link_next(l, &config, err);
    if (ret == 0)
        ret = redis_link_next(l, &policy, err);
    if (ret == 0 && redis_reply_is_error(info, "LOADING"))
        ret = redis_reply_errno(info, err);
    if (ret == 0) {
        if (redis_reply_kind(info) == REDIS_BYTES)
            take_info(&s, redis_reply_bytes(info));
        take_config(&s, config);
        take_config(&s, policy);
        *out = s;
    }
    redis_reply_free(info);
    redis_reply_free(config);
    redis_reply_free(policy);
    return ret;
}

#define HOW " (redis.conf, or CONFIG SET and CONFIG REWRITE)"

static const char *const modes[] = {"always", "everysec", "never"};

/* Does it keep what the mode promises? */
static int check_durable(const struct redis_info *s, enum store_fsync mode, struct err *err)
{
    const char *want = modes[mode];

    if (mode == STORE_FSYNC_NEVER)
        return 0;
    if (s->aof_off || (s->has_config && !s->aof))
        return err_set(err, -EINVAL,
                       "--fsync %s: this Redis keeps no log: set \"appendonly yes\" and "
                       "\"appendfsync %s\"" HOW ", or start the node with --fsync never",
                       want, want);
    if (mode == STORE_FSYNC_ALWAYS && s->has_config && !s->always)
        return err_set(err, -EINVAL,
                       "--fsync always: this Redis does not sync what it acknowledges: set "
                       "\"appendfsync always\"" HOW ", or start the node with --fsync %s",
                       s->everysec ? "everysec" : "never");
    if (mode == STORE_FSYNC_ALWAYS && s->lax)
        return err_set(err, -EINVAL,
                       "--fsync always: this Redis does not sync while it rewrites its log: set "
                       "\"no-appendfsync-on-rewrite no\"" HOW);
    if (mode == STORE_FSYNC_EVERYSEC && s->has_config && !s->always && !s->everysec)
        return err_set(err, -EINVAL,
                       "--fsync everysec: set \"appendfsync everysec\"" HOW
                       ", or start the node with --fsync never");
    return 0;
}

/* What it may not tell, and would be refused for. Once. */
static void warn_of_unknown(const struct redis_info *s, enum store_fsync mode, bool *told)
{
    bool policy = s->policy[0] == '\0', durable = !s->has_config && mode != STORE_FSYNC_NEVER;

    if (*told || (!policy && !durable))
        return;
    *told = true;
    log_event(LOG_LEVEL_WARN, "redis-unverified",
              "reason=\"%s refused\" effect=\"it is taken for granted that it has %s%s%s%s\"",
              policy ? "INFO and CONFIG GET are" : "CONFIG GET is",
              durable ? "appendonly yes and appendfsync " : "", durable ? modes[mode] : "",
              durable && policy ? ", and " : "", policy ? "maxmemory-policy noeviction" : "");
}

int redis_info_check(const struct redis_info *s, enum store_fsync mode, bool *told, struct err *err)
{
    int ret;

    if (s->major != 0 && s->major < 5)
        return err_set(err, -EINVAL, "this Redis is of version %d: 5 is the least", s->major);
    if (s->clustered)
        return err_set(err, -EINVAL, "this is a Redis cluster: each node needs a Redis of its own");
    if (strcmp(s->role, "slave") == 0)
        return err_set(err, -EROFS, "this Redis is a replica of another one (READONLY)");
    if (strncmp(s->policy, "allkeys", 7) == 0)
        return err_set(err, -EINVAL,
                       "this Redis throws data away when its memory is full: set "
                       "\"maxmemory-policy noeviction\"" HOW);
    ret = check_durable(s, mode, err);
    if (ret == 0)
        warn_of_unknown(s, mode, told);
    return ret;
}
