/* json_read.c - reads flat objects, as the lines of GET /watch are. */
#include "common/json.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "common/base64.h"

/* "NAME" or, where it may be coded, "NAME_base64" (then *coded). */
static struct json_member *find(struct json_member *members, unsigned n, const char *name,
                                bool *coded)
{
    for (unsigned i = 0; i < n; i++) {
        size_t len = strlen(members[i].name);

        if (strncmp(name, members[i].name, len) != 0)
            continue;
        *coded = strcmp(name + len, "_base64") == 0;
        if (name[len] == '\0' || (*coded && members[i].coded))
            return &members[i];
    }
    return NULL;
}

static int take(struct json_member *m, const json_t *value, bool coded)
{
    struct span text;

    if (m->given || !json_is_string(value))
        return -EBADMSG;
    m->given = true;
    text = span_of(json_string_value(value), json_string_length(value));
    if (coded && base64_decode(&m->value, text) != 0)
        return m->value.err != 0 ? m->value.err : -EBADMSG;
    if (!coded)
        buf_add_span(&m->value, text);
    return m->value.err;
}

int json_read(struct span text, struct json_member *members, unsigned n)
{
    json_t *object, *value;
    const char *name;
    int err = 0;

    for (unsigned i = 0; i < n; i++) {
        members[i].given = false;
        buf_clear(&members[i].value);
    }
    if (text.len == 0)
        return -EBADMSG;
    object = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object))
        err = -EBADMSG;
    json_object_foreach(object, name, value)
    {
        bool coded = false;
        struct json_member *m = find(members, n, name, &coded);

        if (err == 0 && m != NULL)
            err = take(m, value, coded);
        if (err == 0 && (json_is_object(value) || json_is_array(value)))
            err = -EBADMSG;
    }
    json_decref(object);
    return err;
}

void json_members_fini(struct json_member *members, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        buf_fini(&members[i].value);
}
