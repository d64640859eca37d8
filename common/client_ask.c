/*
 * client_ask.c - one message to one node: HELLO, and what repair asks of a single replica. No
 * quorum, no second try.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/op.h"

struct ask_op {
    struct op op;
    ask_done_fn *done;
    void *arg;
    hello_done_fn *hello_done; /* of client_hello(), whose arg is: */
    void *hello_arg;
};

static void ask_finish(struct ask_op *a, struct ask_result *res)
{
    a->done(a->arg, res);
    op_fini(&a->op);
    free(a);
}

static void on_asked(struct round *r, struct leg *leg)
{
    struct ask_op *a = container_of(r->op, struct ask_op, op);
    struct ask_result res = {.err = leg->err};

    if (leg->body != NULL)
        res.answer = &leg->ans;
    if (res.err < 0)
        round_explain(r, &res.why);
    else if (leg->ans.kind == ANS_LIST || leg->ans.kind == ANS_KEYS)
        res.entries = value_span(leg->value);
    else
        res.value = leg->value;
    ask_finish(a, &res);
}

static void ask_end(struct op *op, int err)
{
    struct ask_result res = {.err = err};

    if (op->round != NULL)
        round_explain(op->round, &res.why);
    ask_finish(container_of(op, struct ask_op, op), &res);
}

struct op *client_ask(struct client *c, const struct ask_args *args, ask_done_fn *done, void *arg)
{
    struct ask_op *a = calloc(1, sizeof *a);
    struct message m = *args->m;
    struct round *r;
    uint64_t size = args->body.len;

    if (m.kind == MSG_READ && (m.flags & MSG_WANT_VALUE) && m.length != READ_ALL)
        size = m.length;
    if (a == NULL || op_init(&a->op, c, m.key, OP_OF_NODE, args->timeout_ms, size) < 0) {
        free(a);
        return NULL;
    }
    a->done = done;
    a->arg = arg;
    a->op.on_end = ask_end;
    r = round_new(&a->op, m.key, &args->node, 1, 1, 1, on_asked);
    if (r == NULL) {
        op_fail_soon(&a->op, -ENOMEM);
        return &a->op;
    }
    if (args->body.len > 0)
        r->body = value_ref(args->body);
    round_send(r, 0, &m);
    return &a->op;
}

/* --- HELLO ------------------------------------------------------------------------------------ */

static void on_hello(void *arg, struct ask_result *res)
{
    struct ask_op *a = arg;
    struct hello_result hello = {.err = res->err};

    if (res->answer != NULL)
        hello.answer = *res->answer;
    a->hello_done(a->hello_arg, &hello);
}

struct op *client_hello(struct client *c, const struct hello_args *args, hello_done_fn *done,
                        void *arg)
{
    struct message m = {.kind = MSG_HELLO,
                        .node = args->self,
                        .incarnation = args->incarnation,
                        .recovering = args->state};
    struct ask_args ask = {.node = args->node, .m = &m, .timeout_ms = args->timeout_ms};
    struct op *op = client_ask(c, &ask, on_hello, NULL);
    struct ask_op *a;

    if (op == NULL)
        return NULL;
    a = container_of(op, struct ask_op, op);
    a->arg = a;
    a->hello_done = done;
    a->hello_arg = arg;
    return op;
}
