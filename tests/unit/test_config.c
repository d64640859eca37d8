/* test_config.c - cluster.json as it must be, and what each wrong one (golden/config) is told. */
#include "common/config.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIR_GOLDEN "tests/golden/config/"
#define SHOULD_FAIL "should-fail-"

/*
 * What stands behind the file's name in the message; of what the JSON parser itself says, only
 * where.
 */
static const struct {
    const char *file, *message;
    bool to_the_end;
} refused[] = {
    {"addr-duplicate", "nodes[1].addr: \"LocalHost:8081\" is also that of nodes[0]", true},
    {"addr-duplicate-v6", "nodes[1].addr: \"[0:0::0001]:80\" is also that of nodes[0]", true},
    {"addr-empty", "nodes[0].addr: \"\" is empty", true},
    {"addr-host-space",
     "nodes[0].addr: host \"local host\" has a byte that is no letter, digit, '.', '-' or '_'",
     true},
    {"addr-missing", "nodes[0].addr: missing", true},
    {"addr-no-host", "nodes[0].addr: no host before the ':'", true},
    {"addr-no-port", "nodes[0].addr: localhost is not HOST:PORT", true},
    {"addr-null", "nodes[0].addr: needs a string, found null", true},
    {"addr-path",
     "nodes[0].addr: host \"localhost/x\" has a byte that is no letter, digit, '.', '-' or '_'",
     true},
    {"addr-port-above", "nodes[2].addr: port 70000 is above 65535", true},
    {"addr-port-empty", "nodes[0].addr: no port behind the ':'", true},
    {"addr-port-huge", "nodes[0].addr: port 99999999999999999999 is above 65535", true},
    {"addr-port-negative", "nodes[0].addr: port -1 is not a number", true},
    {"addr-port-word", "nodes[0].addr: port http is not a number", true},
    {"addr-port-zero", "nodes[0].addr: port 0 is below 1", true},
    {"addr-url",
     "nodes[0].addr: host \"http://localhost\" has a byte that is no letter, digit, '.', '-' or "
     "'_'",
     true},
    {"addr-v4-bad", "nodes[0].addr: host 10.0.0.256 is no IPv4 address", true},
    {"addr-v6-bad", "nodes[0].addr: host [::g] is no IPv6 address", true},
    {"addr-v6-bare", "nodes[0].addr: an IPv6 address stands in brackets, as in [::1]:8081", true},
    {"addr-v6-name", "nodes[0].addr: host [localhost] is no IPv6 address", true},
    {"addr-v6-no-port", "nodes[0].addr: [::1] is not [IPV6]:PORT", true},
    {"addr-v6-open", "nodes[0].addr: [::1:8081 is not [IPV6]:PORT", true},
    {"cut-short", "line 2, column 0: ", false},
    {"duplicate-field", "line 1, column 101: duplicate ", false},
    {"empty-file", "line 1, column 0: ", false},
    {"hash-number", "hash: needs a string, found an integer: 1", true},
    {"hash-unknown", "hash: \"md5\" is neither \"fnv1a\" nor \"fnv1a-mix\"", true},
    {"id-duplicate", "nodes[2].id: \"node-1\" is also that of nodes[0]", true},
    {"id-empty", "nodes[0].id: \"\" is empty", true},
    {"id-long", "nodes[0].id: \"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...\" of 256 bytes is over 255",
     true},
    {"id-missing", "nodes[1].id: missing", true},
    {"id-number", "nodes[0].id: needs a string, found an integer: 1", true},
    {"max-value-size-above", "max_value_size: 1099511627777 is above 1099511627776", true},
    {"max-value-size-zero", "max_value_size: 0 is below 1", true},
    {"no-nodes-field", "nodes: missing", true},
    {"node-string", "nodes[0]: needs an object, found a string: \"node-1\"", true},
    {"nodes-empty", "nodes: [] is empty, a cluster has at least one", true},
    {"nodes-null", "nodes: needs an array, found null", true},
    {"nodes-object", "nodes: needs an array, found an object: {\"id\":\"a\"}", true},
    {"not-json", "line 1, column 5: ", false},
    {"not-utf8", "line 1, column 19: ", false},
    {"nul-in-id", "line 1, column 28: a NUL (\\u0000) in a string", true},
    {"replication-huge", "replication_factor: 4294967296 is above 4294967295", true},
    {"replication-missing", "replication_factor: missing", true},
    {"replication-negative", "replication_factor: -3 is below 1", true},
    {"replication-real",
     "replication_factor: needs an integer, found a number with a fraction or exponent: 3.0", true},
    {"replication-string", "replication_factor: needs an integer, found a string: \"3\"", true},
    {"replication-too-big", "line 1, column 98: ", false},
    {"replication-zero", "replication_factor: 0 is below 1", true},
    {"second-object", "line 2, column 1: ", false},
    {"top-is-array", "the whole file: needs an object, found an array: []", true},
    {"trailing-garbage", "line 2, column 1: ", false},
    {"unknown-field",
     "unknown field \"replication_facter\": 1, the nearest known one is \"replication_factor\"",
     true},
    {"unknown-node-field",
     "nodes[0]: unknown field \"adr\": \"localhost:8081\", the nearest known one is \"addr\"",
     true},
    {"virtual-nodes-above", "virtual_nodes: 10001 is above 10000", true},
    {"virtual-nodes-bool", "virtual_nodes: needs an integer, found a boolean: true", true},
    {"virtual-nodes-zero", "virtual_nodes: 0 is below 1", true},
};
#define N_REFUSED (sizeof(refused) / sizeof(refused[0]))

/* --- helpers ---------------------------------------------------------------------------------- */

static struct config *load(const char *path)
{
    struct config *c = NULL;
    struct err err = {0};

    if (config_load(path, &c, &err) != 0)
        fail_msg("%s", err.msg);
    return c;
}

static int parse(const char *text, struct err *err)
{
    struct config *c = NULL;
    int e = config_parse("c.json", span_str(text), &c, err);

    config_free(c);
    return e;
}

static void assert_split(const char *addr, const char *want_host, unsigned want_port)
{
    char *host = NULL;
    uint16_t port = 0;

    assert_int_equal(config_split_addr(addr, &host, &port, NULL), 0);
    assert_string_equal(host, want_host);
    assert_int_equal(port, want_port);
    free(host);
}

/* --- what is read ----------------------------------------------------------------------------- */

static void nodes_come_sorted_by_id_whatever_the_order_in_the_file(void **state)
{
    struct config *c = load(DIR_GOLDEN "full.json");

    (void)state;
    assert_string_equal(c->path, DIR_GOLDEN "full.json");
    assert_int_equal(c->n_nodes, 3);
    assert_string_equal(c->nodes[0].id, "node-1");
    assert_string_equal(c->nodes[0].addr, "10.0.0.1:65535");
    assert_string_equal(c->nodes[0].host, "10.0.0.1");
    assert_int_equal(c->nodes[0].port, 65535);
    assert_string_equal(c->nodes[1].id, "node-2");
    assert_string_equal(c->nodes[1].host, "Host-2.example_x.org");
    assert_int_equal(c->nodes[1].port, 1);
    assert_string_equal(c->nodes[2].id, "node-3");
    assert_string_equal(c->nodes[2].addr, "[::1]:8083");
    assert_string_equal(c->nodes[2].host, "::1");
    assert_int_equal(c->replication_factor, 2);
    assert_int_equal(c->virtual_nodes, 7);
    assert_int_equal(c->hash, RING_FNV1A_MIX);
    assert_int_equal(c->max_value_size, 1ull << 40);
    assert_int_equal(ring_n_nodes(c->ring), 3);
    assert_int_equal(ring_n_points(c->ring), 21);
    assert_int_equal(ring_n_replicas(c->ring), 2);
    config_free(c);
}

static void what_is_not_said_has_its_default(void **state)
{
    struct config *c = load(DIR_GOLDEN "least.json");

    (void)state;
    assert_int_equal(c->virtual_nodes, 100);
    assert_int_equal(c->hash, RING_FNV1A);
    assert_int_equal(c->max_value_size, 1 << 30);
    config_free(c);
}

static void the_cluster_of_the_quick_start_is_right(void **state)
{
    struct config *c = load("cluster.json");
    const unsigned *replicas = ring_replicas(c->ring, span_str("user:42"));

    (void)state;
    assert_int_equal(config_check_client(c, NULL), 0);
    assert_string_equal(c->nodes[replicas[0]].addr, "localhost:8081");
    assert_string_equal(c->nodes[replicas[1]].addr, "localhost:8083");
    assert_string_equal(c->nodes[replicas[2]].addr, "localhost:8082");
    config_free(c);
}

static void a_node_is_found_by_its_id(void **state)
{
    struct config *c = load(DIR_GOLDEN "full.json");

    (void)state;
    assert_int_equal(config_find(c, "node-1"), 0);
    assert_int_equal(config_find(c, "node-2"), 1);
    assert_int_equal(config_find(c, "node-3"), 2);
    assert_int_equal(config_find(c, "node-0"), -ENOENT);
    assert_int_equal(config_find(c, "node-4"), -ENOENT);
    assert_int_equal(config_find(c, ""), -ENOENT);
    config_free(c);
}

static void a_client_needs_as_many_nodes_as_replicas(void **state)
{
    struct config *few = load(DIR_GOLDEN "least.json"), *enough = load(DIR_GOLDEN "full.json");
    struct err err;

    (void)state;
    assert_int_equal(config_check_client(few, &err), -EINVAL);
    assert_string_equal(err.msg, DIR_GOLDEN
                        "least.json: replication_factor: 5 is above the number of nodes, 1");
    assert_int_equal(config_check_client(enough, &err), 0);
    config_free(few);
    config_free(enough);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void each_wrong_file_is_told_what_is_wrong_and_where(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_REFUSED; i++) {
        struct config *c = NULL;
        struct err err = {0};
        char path[256], want[1024];

        (void)snprintf(path, sizeof(path), DIR_GOLDEN SHOULD_FAIL "%s.json", refused[i].file);
        (void)snprintf(want, sizeof(want), "%s: %s", path, refused[i].message);
        assert_int_equal(config_load(path, &c, &err), -EINVAL);
        assert_null(c);
        if (!refused[i].to_the_end) {
            assert_true(strlen(err.msg) > strlen(want));
            err.msg[strlen(want)] = '\0';
        }
        assert_string_equal(err.msg, want);
        assert_int_equal(config_load(path, &c, NULL), -EINVAL);
    }
}

static void no_wrong_file_goes_untested(void **state)
{
    DIR *dir = opendir(DIR_GOLDEN);
    struct dirent *d;
    unsigned n = 0;

    (void)state;
    assert_non_null(dir);
    while ((d = readdir(dir)) != NULL)
        n += strncmp(d->d_name, SHOULD_FAIL, strlen(SHOULD_FAIL)) == 0;
    closedir(dir);
    assert_int_equal(n, N_REFUSED);
}

static void files_that_cannot_be_read_say_why(void **state)
{
    struct config *c = NULL;
    struct err err;

    (void)state;
    assert_int_equal(config_load(DIR_GOLDEN "absent.json", &c, &err), -ENOENT);
    assert_string_equal(err.msg, DIR_GOLDEN "absent.json: No such file or directory");
    assert_int_equal(config_load(DIR_GOLDEN, &c, &err), -EISDIR);
    assert_string_equal(err.msg, DIR_GOLDEN ": Is a directory");
    assert_int_equal(config_load("/dev/zero", &c, &err), -EFBIG);
    assert_null(c);
}

static void texts_are_cut_short_and_made_printable_in_messages(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(parse("", &err), -EINVAL);
    assert_int_equal(parse("{\"a\\n\\u00e4\": 1}", &err), -EINVAL);
    assert_string_equal(
        err.msg, "c.json: unknown field \"a\\n\\u00E4\": 1, the nearest known one is \"hash\"");
    assert_int_equal(
        parse("{\"nodes\": \"0123456789012345678901234567890123456789012345678901234567890123456789"
              "0123456789\"}",
              &err),
        -EINVAL);
    assert_non_null(strstr(err.msg, "c.json: nodes: needs an array, found a string: \""));
    assert_non_null(strstr(err.msg, "..."));
    assert_true(strlen(err.msg) < 140);
}

/* Every cut of a good file is refused: nothing is believed before its end. */
static void no_part_of_a_file_is_a_configuration(void **state)
{
    static const char whole[] = "{\"nodes\":[{\"id\":\"a\",\"addr\":\"h:1\"}],\"replication_"
                                "factor\":1,\"virtual_nodes\":12}";

    (void)state;
    for (size_t len = 0; len < sizeof(whole) - 1; len++) {
        struct config *c = NULL;

        assert_int_equal(config_parse("c.json", span_of(whole, len), &c, NULL), -EINVAL);
        assert_null(c);
    }
    assert_int_equal(parse(whole, NULL), 0);
}

/* --- addresses -------------------------------------------------------------------------------- */

static void addresses_are_split_at_the_port(void **state)
{
    (void)state;
    assert_split("localhost:8081", "localhost", 8081);
    assert_split("127.0.0.1:1", "127.0.0.1", 1);
    assert_split("[::1]:65535", "::1", 65535);
    assert_split("[fe80::1%eth0]:80", "fe80::1%eth0", 80);
    assert_split("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80);
    assert_split("a.b-c_d.9x:080", "a.b-c_d.9x", 80);
}

static void addresses_that_are_none_leave_the_outputs_alone(void **state)
{
    static const char *const bad[] = {
        "",
        ":",
        "h",
        "h:",
        ":1",
        "h:0",
        "h:65536",
        "h:+1",
        "h: 1",
        "h:1 ",
        "h:1x",
        "[]:1",
        "[::1]",
        "[::1]1",
        "[::1]:",
        "[::1",
        "::1]:1",
        "1.2.3:1",
        "010.0.0.1:1",
        "1:1",
        "h\xc3\xa4:1",
        "user@h:1",
        "[fe80::1%]:1",
        "[fe80::1%a b]:1",
        "[1.2.3.4]:1",
        "h:1:2",
        "h:18446744073709551696", /* 80, had it wrapped round */
    };
    char *host = NULL;
    uint16_t port = 7;
    struct err err;

    (void)state;
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        err.msg[0] = '\0';
        assert_int_equal(config_split_addr(bad[i], &host, &port, &err), -EINVAL);
        assert_true(err.msg[0] != '\0');
        assert_null(host);
        assert_int_equal(port, 7);
    }
}

/* --- two rings -------------------------------------------------------------------------------- */

/* A ring of nodes a, b, ... */
static struct config *make_ring(unsigned n_nodes, unsigned rf, unsigned vnodes, const char *hash)
{
    struct config *c = NULL;
    struct buf text = {0};

    buf_add_str(&text, "{\"nodes\":[");
    for (unsigned i = 0; i < n_nodes; i++)
        buf_addf(&text, "%s{\"id\":\"%c\",\"addr\":\"h:%u\"}", i == 0 ? "" : ",", 'a' + (int)i,
                 i + 1);
    buf_addf(&text, "],\"replication_factor\":%u,\"virtual_nodes\":%u,\"hash\":\"%s\"}", rf, vnodes,
             hash);
    assert_int_equal(config_parse("/etc/kvfs/c.json", buf_span(&text), &c, NULL), 0);
    buf_fini(&text);
    return c;
}

static void assert_compared(const struct config *ours, struct config *theirs, const char *want)
{
    struct buf json = {0};
    struct err why;

    config_ring_json(theirs, &json);
    assert_int_equal(json.err, 0);
    config_ring_compare(ours, buf_span(&json), &why);
    assert_string_equal(why.msg, want);
    buf_fini(&json);
    config_free(theirs);
}

static void every_field_in_which_two_rings_differ_is_named(void **state)
{
    struct config *c = make_ring(3, 3, 100, "fnv1a");

    (void)state;
    assert_compared(c, make_ring(3, 2, 100, "fnv1a"),
                    "another ring: replication_factor: 2 there, 3 in c.json");
    assert_compared(c, make_ring(3, 3, 50, "fnv1a-mix"),
                    "another ring: virtual_nodes: 50 there, 100 in c.json; hash: fnv1a-mix there, "
                    "fnv1a in c.json");
    assert_compared(c, make_ring(4, 3, 100, "fnv1a"), "another ring: nodes: d only there");
    assert_compared(c, make_ring(2, 1, 100, "fnv1a"),
                    "another ring: nodes: c only in c.json; replication_factor: 1 there, 3 in "
                    "c.json");
    assert_compared(c, make_ring(9, 3, 100, "fnv1a"),
                    "another ring: nodes: d, e, f and 3 more only there");
    assert_compared(c, make_ring(3, 3, 100, "fnv1a"), "another ring");
    config_free(c);
}

static void a_stranger_may_say_anything_of_his_ring(void **state)
{
    static const char *const said[] = {
        "",
        "x",
        "[]",
        "{}",
        "null",
        "{\"nodes\":3,\"hash\":[],\"virtual_nodes\":\"a\"}",
        "{\"replication_factor\":2",
        "another ring: the request's is 12",
        "\xff\xfe",
    };
    static const char other_ids[] = "{\"nodes\":[1,null,\"z\",\"a\"],\"virtual_nodes\":-1}";
    struct config *c = make_ring(3, 3, 100, "fnv1a");
    struct err why;

    (void)state;
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        config_ring_compare(c, span_str(said[i]), &why);
        assert_string_equal(why.msg, "another ring");
    }
    config_ring_compare(c, span_str(other_ids), &why);
    assert_string_equal(why.msg, "another ring: nodes: z only there, b, c only in c.json; "
                                 "virtual_nodes: -1 there, 100 in c.json");
    config_free(c);
}

/* Ids of 255 bytes for 1,000 nodes are more than an answer to a stranger should have. */
static void a_ring_of_long_ids_tells_only_their_number(void **state)
{
    struct buf text = {0}, json = {0};
    struct config *big = NULL, *small = make_ring(3, 3, 100, "fnv1a");
    struct err why;

    (void)state;
    buf_add_str(&text, "{\"replication_factor\":3,\"virtual_nodes\":1,\"nodes\":[");
    for (unsigned i = 0; i < 1000; i++)
        buf_addf(&text, "%s{\"id\":\"%0255u\",\"addr\":\"h:%u\"}", i == 0 ? "" : ",", i, i + 1);
    buf_add_str(&text, "]}");
    assert_int_equal(config_parse("big.json", buf_span(&text), &big, NULL), 0);
    config_ring_json(big, &json);
    assert_true(json.err == 0 && json.len < 200);
    config_ring_compare(small, buf_span(&json), &why);
    assert_string_equal(why.msg, "another ring: number of nodes: 1000 there, 3 in c.json; "
                                 "virtual_nodes: 1 there, 100 in c.json");
    buf_fini(&text);
    buf_fini(&json);
    config_free(big);
    config_free(small);
}

/* What a mount shows as its configuration may be used as one. */
static void a_config_told_reads_back_as_itself(void **state)
{
    static const char text[] =
        "{\"nodes\":[{\"id\":\"a\\\"\",\"addr\":\"[::1]:81\"},{\"id\":\"b\",\"addr\":\"h:82\"}],"
        "\"replication_factor\":2,\"virtual_nodes\":7,\"hash\":\"fnv1a-mix\","
        "\"max_value_size\":1000}\n";
    struct config *c = NULL;
    struct buf told = {0};
    struct err err = {0};

    (void)state;
    assert_int_equal(config_parse("x.json", span_str(text), &c, &err), 0);
    config_json(c, &told);
    assert_int_equal(told.err, 0);
    assert_int_equal(told.len, strlen(text));
    assert_memory_equal(told.data, text, told.len);
    buf_fini(&told);
    config_free(c);
}

static void the_replicas_of_a_key_are_told_in_ring_order(void **state)
{
    static const char text[] =
        "{\"nodes\":[{\"id\":\"node-1\",\"addr\":\"localhost:8081\"},"
        "{\"id\":\"node-2\",\"addr\":\"localhost:8082\"},"
        "{\"id\":\"node-3\",\"addr\":\"localhost:8083\"}],\"replication_factor\":2}";
    static const char want[] = "{\"key\":\"user:42\",\"replicas\":["
                               "{\"id\":\"node-1\",\"addr\":\"localhost:8081\"},"
                               "{\"id\":\"node-3\",\"addr\":\"localhost:8083\"}]}\n";
    struct config *c = NULL;
    struct buf told = {0};
    struct err err = {0};

    (void)state;
    assert_int_equal(config_parse("x.json", span_str(text), &c, &err), 0);
    config_owners_json(c, span_str("user:42"), &told);
    assert_int_equal(told.len, strlen(want));
    assert_memory_equal(told.data, want, told.len);
    buf_fini(&told);
    config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_come_sorted_by_id_whatever_the_order_in_the_file),
        cmocka_unit_test(what_is_not_said_has_its_default),
        cmocka_unit_test(the_cluster_of_the_quick_start_is_right),
        cmocka_unit_test(a_node_is_found_by_its_id),
        cmocka_unit_test(a_client_needs_as_many_nodes_as_replicas),
        cmocka_unit_test(each_wrong_file_is_told_what_is_wrong_and_where),
        cmocka_unit_test(no_wrong_file_goes_untested),
        cmocka_unit_test(files_that_cannot_be_read_say_why),
        cmocka_unit_test(texts_are_cut_short_and_made_printable_in_messages),
        cmocka_unit_test(no_part_of_a_file_is_a_configuration),
        cmocka_unit_test(addresses_are_split_at_the_port),
        cmocka_unit_test(addresses_that_are_none_leave_the_outputs_alone),
        cmocka_unit_test(every_field_in_which_two_rings_differ_is_named),
        cmocka_unit_test(a_stranger_may_say_anything_of_his_ring),
        cmocka_unit_test(a_ring_of_long_ids_tells_only_their_number),
        cmocka_unit_test(a_config_told_reads_back_as_itself),
        cmocka_unit_test(the_replicas_of_a_key_are_told_in_ring_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
