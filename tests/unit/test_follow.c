/* test_follow.c - what may be kept, and what a change drops. */
#include "fs/follow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/listings.h"

struct world {
    struct inode_table *inodes;
    struct follow *follow;
    struct listings *listings;
    unsigned n_forget, n_all;
    uint64_t forgot; /* the last id */
};

static void on_forget(void *arg, uint64_t id)
{
    struct world *w = arg;

    w->n_forget++;
    w->forgot = id;
}

static void on_forget_all(void *arg)
{
    ((struct world *)arg)->n_all++;
}

static int fixture(void **state)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    assert_int_equal(inode_table_new(&w->inodes), 0);
    assert_int_equal(follow_new(w->inodes, &w->follow), 0);
    assert_int_equal(listings_new(w->follow, 6000, &w->listings), 0);
    follow_set_kernel(w->follow, &(struct follow_kernel){
                                     .forget = on_forget, .forget_all = on_forget_all, .arg = w});
    *state = w;
    return 0;
}

static int unfixture(void **state)
{
    struct world *w = *state;

    listings_free(w->listings);
    follow_free(w->follow);
    inode_table_free(w->inodes);
    free(w);
    return 0;
}

static struct ballot ver(uint64_t counter)
{
    return (struct ballot){.counter = counter, .proposer = 7};
}

static bool is_dir_key(const char *key)
{
    return key[0] != 0 && key[strlen(key) - 1] == '/';
}

/* As read by a lookup; version 0: a directory without a marker. */
static struct found found_of(const char *key, uint64_t version)
{
    bool dir = is_dir_key(key);

    return (struct found){.kind = dir ? INODE_DIR : INODE_FILE,
                          .meta.mode = dir ? S_IFDIR | 0755 : S_IFREG | 0644,
                          .version = version > 0 ? ver(version) : BALLOT_NONE,
                          .has_marker = dir && version > 0,
                          .followed = true};
}

/* The inode of a key, with a reference that the table keeps to its end (as the kernel's). */
static struct inode *inode_of(struct world *w, const char *key, uint64_t version)
{
    struct found found = found_of(key, version);
    struct inode *in;

    assert_int_equal(
        inode_remember(w->inodes, span_str(key), &found, inode_moves(w->inodes), true, &in), 0);
    inode_put(w->inodes, in);
    return in;
}

static struct follow_mark mark_of(struct world *w, const char *key)
{
    return is_dir_key(key) ? follow_mark_dir(w->follow, span_str(key))
                           : follow_mark(w->follow, span_str(key), span_str(key));
}

static struct inode *keep(struct world *w, const char *key, uint64_t version)
{
    struct follow_mark mark = mark_of(w, key);
    struct found found = found_of(key, version);
    struct inode *in = inode_of(w, key, version);

    follow_keep(w->follow, in, span_str(key), &found, &mark);
    return in;
}

static bool is_kept(struct world *w, struct inode *in)
{
    struct found found;

    return follow_recall(w->follow, in, &found);
}

static void change(struct world *w, const char *key, uint64_t version)
{
    follow_changed(w->follow, span_str(key), ver(version), FEED_PUT);
}

static void nothing_is_kept_without_a_live_feed(void **state)
{
    struct world *w = *state;
    struct inode *in = keep(w, "a", 1);

    assert_false(is_kept(w, in));
    follow_live(w->follow, true);
    assert_false(is_kept(w, in)); /* it was read before */
    keep(w, "a", 1);
    assert_true(is_kept(w, in));
    follow_live(w->follow, false);
    assert_false(is_kept(w, in));
    assert_int_equal(w->n_all, 1);
    follow_live(w->follow, true);
    assert_false(is_kept(w, in)); /* what was missed meanwhile is unknown */
}

static void what_no_followed_node_said_is_not_kept(void **state)
{
    struct world *w = *state;
    struct found found = found_of("a", 1);
    struct inode *in = inode_of(w, "a", 1);
    struct follow_mark mark;

    follow_live(w->follow, true);
    mark = mark_of(w, "a");
    found.followed = false;
    follow_keep(w->follow, in, span_str("a"), &found, &mark);
    assert_false(is_kept(w, in));
}

static void a_newer_version_drops_what_is_kept_and_of_a_directory_tells_the_kernel(void **state)
{
    struct world *w = *state;
    struct inode *in, *dir;

    follow_live(w->follow, true);
    in = keep(w, "a", 5);
    dir = keep(w, "d/", 5);
    change(w, "a", 5);
    change(w, "a", 4); /* an older one, late; and ours, again */
    change(w, "d/", 5);
    assert_true(is_kept(w, in) && is_kept(w, dir));
    change(w, "a", 6); /* of a file it believes nothing */
    assert_false(is_kept(w, in));
    assert_int_equal(w->n_forget, 0);
    change(w, "d/", 6);
    assert_false(is_kept(w, dir));
    assert_int_equal(w->n_forget, 1);
    assert_int_equal(w->forgot, dir->id);
    assert_true(follow_is_behind(w->follow, in, ver(5)));
    assert_false(follow_is_behind(w->follow, in, ver(6)));
}

/* An open asks the cluster, and may see a version before the feed tells of it. */
static void what_is_kept_does_not_count_once_a_newer_version_was_seen(void **state)
{
    struct world *w = *state;
    struct inode *in;

    follow_live(w->follow, true);
    in = keep(w, "a", 1);
    follow_saw(w->follow, in, span_str("a"), ver(2));
    assert_false(is_kept(w, in));
    keep(w, "a", 2);
    assert_true(is_kept(w, in));
}

static void a_change_while_it_was_read_keeps_it_from_being_kept(void **state)
{
    struct world *w = *state;
    struct found found = found_of("a", 5);
    struct follow_mark mark;
    struct inode *in;

    follow_live(w->follow, true);
    mark = mark_of(w, "a");
    change(w, "a", 6); /* nobody knows the inode yet */
    in = inode_of(w, "a", 5);
    follow_keep(w->follow, in, span_str("a"), &found, &mark);
    assert_false(is_kept(w, in));
    mark = mark_of(w, "a");
    follow_live(w->follow, false);
    follow_live(w->follow, true);
    follow_keep(w->follow, in, span_str("a"), &found, &mark);
    assert_false(is_kept(w, in));
}

static void a_read_older_than_what_was_told_before_is_not_kept(void **state)
{
    struct world *w = *state;
    struct inode *in;

    follow_live(w->follow, true);
    in = inode_of(w, "a", 5);
    change(w, "a", 6);
    keep(w, "a", 5);
    assert_false(is_kept(w, in));
    keep(w, "a", 6);
    assert_true(is_kept(w, in));
}

static void what_this_mount_wrote_is_kept_unless_others_wrote_later(void **state)
{
    struct world *w = *state;
    struct found found = found_of("a", 6);
    struct follow_mark mark;
    struct inode *in;

    follow_live(w->follow, true);
    in = keep(w, "a", 5);
    mark = mark_of(w, "a");
    change(w, "a", 6); /* our own, told by the first replica before we know that it is stored */
    follow_wrote(w->follow, span_str("a"), ver(6));
    follow_keep_own(w->follow, in, span_str("a"), &found, &mark);
    assert_true(is_kept(w, in));
    w->n_forget = 0;
    change(w, "a", 6);
    assert_true(is_kept(w, in));
    assert_int_equal(w->n_forget, 0);

    mark = mark_of(w, "a");
    change(w, "a", 8);
    follow_wrote(w->follow, span_str("a"), ver(7));
    found.version = ver(7);
    follow_keep_own(w->follow, in, span_str("a"), &found, &mark);
    assert_false(is_kept(w, in));
    follow_wrote(w->follow, span_str("a"), BALLOT_NONE); /* unknown outcome */
    assert_false(is_kept(w, in));
}

static void own_deletes_are_known_by_their_version(void **state)
{
    struct world *w = *state;
    struct inode *dir;

    follow_live(w->follow, true);
    dir = keep(w, "d/", 0);
    follow_wrote(w->follow, span_str("d/x"), ver(9));
    assert_false(is_kept(w, dir));
    dir = keep(w, "d/", 0);
    follow_changed(w->follow, span_str("d/x"), ver(9), FEED_DELETE);
    assert_true(is_kept(w, dir));
}

static void a_change_reaches_up_to_the_first_directory_with_a_marker(void **state)
{
    struct world *w = *state;
    struct inode *top, *marked, *bare;
    struct follow_mark root, in_top, in_marked, in_bare;

    follow_live(w->follow, true);
    top = keep(w, "t/", 0);
    marked = keep(w, "t/m/", 3);
    bare = keep(w, "t/m/b/", 0);
    root = follow_mark_dir(w->follow, span_str(""));
    in_top = mark_of(w, "t/");
    in_marked = mark_of(w, "t/m/");
    in_bare = mark_of(w, "t/m/b/");
    change(w, "t/m/b/x", 9);
    assert_false(is_kept(w, bare)); /* it may just have begun to be */
    assert_true(is_kept(w, marked));
    assert_true(is_kept(w, top));
    assert_false(follow_holds(w->follow, &in_bare));
    assert_false(follow_holds(w->follow, &in_marked)); /* which lists b */
    assert_true(follow_holds(w->follow, &in_top));
    assert_true(follow_holds(w->follow, &root));

    follow_changed(w->follow, span_str("t/m/"), ver(10), FEED_DELETE);
    assert_false(is_kept(w, marked));
    assert_false(is_kept(w, top));
    assert_false(marked->has_marker);
    assert_false(follow_holds(w->follow, &in_top));
    assert_false(follow_holds(w->follow, &root));
}

static void a_directory_that_comes_to_hide_a_file_drops_it(void **state)
{
    struct world *w = *state;
    struct inode *in;

    follow_live(w->follow, true);
    in = keep(w, "a", 1);
    change(w, "a/x", 2);
    assert_false(is_kept(w, in));
}

static void a_file_read_while_a_directory_came_to_hide_it_is_not_kept(void **state)
{
    struct world *w = *state;
    struct found found = found_of("a", 1);
    struct follow_mark mark;
    struct inode *in;

    follow_live(w->follow, true);
    mark = mark_of(w, "a");
    change(w, "a/x", 2);
    in = inode_of(w, "a", 1);
    follow_keep(w->follow, in, span_str("a"), &found, &mark);
    assert_false(is_kept(w, in));
}

static void a_file_that_comes_to_be_hidden_by_a_directory_is_looked_for_in_it(void **state)
{
    struct world *w = *state;
    struct inode *in;

    follow_live(w->follow, true);
    in = keep(w, "a/", 3);
    change(w, "a", 4);
    assert_false(is_kept(w, in));
}

static void pieces_of_long_names_are_not_kept(void **state)
{
    struct world *w = *state;
    struct found found = {.kind = INODE_DIR, .meta.mode = S_IFDIR | 0755, .followed = true};
    struct follow_mark mark;
    struct inode *in;

    follow_live(w->follow, true);
    mark = follow_mark_dir(w->follow, span_str("piece"));
    assert_false(follow_holds(w->follow, &mark));
    mark = follow_mark_dir(w->follow, span_str(""));
    assert_int_equal(
        inode_remember(w->inodes, span_str("piece"), &found, inode_moves(w->inodes), true, &in), 0);
    inode_put(w->inodes, in);
    follow_keep(w->follow, in, span_str("piece"), &found, &mark);
    assert_false(is_kept(w, in));
}

static void what_was_kept_under_an_old_key_does_not_count_under_a_new_one(void **state)
{
    struct world *w = *state;
    struct inode *in;

    follow_live(w->follow, true);
    in = keep(w, "a", 50);
    follow_wrote(w->follow, span_str("b"), ver(51));
    follow_wrote(w->follow, span_str("a"), ver(52));
    assert_int_equal(inode_move(w->inodes, span_str("a"), span_str("b"), INODE_FILE), 0);
    assert_false(is_kept(w, in));
    keep(w, "b", 3); /* versions of different keys do not compare */
    assert_true(is_kept(w, in));
    change(w, "b", 60);
    assert_false(is_kept(w, in));
}

static void pages_are_of_one_version_only_when_nothing_was_mixed_in(void **state)
{
    struct world *w = *state;
    struct inode *in = inode_of(w, "a", 1);
    struct follow_pages pages = follow_pages(w->follow, in);

    assert_true(ballot_is_none(pages.version));
    pages.version = ver(4);
    follow_set_pages(w->follow, in, &pages);
    assert_int_equal(ballot_cmp(follow_pages(w->follow, in).version, ver(4)), 0);
    pages = follow_pages(w->follow, in);
    follow_mix_pages(w->follow, in);
    follow_set_pages(w->follow, in, &pages);
    assert_true(ballot_is_none(follow_pages(w->follow, in).version));
}

/* --- listings ------------------------------------------------------------------------------------
 */

static struct list_args args_of(const char *prefix, const char *after)
{
    return (struct list_args){
        .prefix = span_str(prefix), .start_after = span_str(after), .delimiter = true, .limit = 10};
}

static void put_page(struct world *w, const char *prefix, const char *after, size_t bytes)
{
    struct follow_mark mark = follow_mark_dir(w->follow, span_str(prefix));
    struct list_args args = args_of(prefix, after);
    struct list_result page = {.n = 1, .more = true, .followed = true};

    for (size_t i = 0; i < bytes; i++)
        buf_u8(&page.entries, (uint8_t)i);
    buf_add_str(&page.next, "next");
    listings_put(w->listings, &args, &page, &mark);
    list_result_fini(&page);
}

static bool has_page(struct world *w, const char *prefix, const char *after)
{
    struct list_args args = args_of(prefix, after);
    struct list_result page = {0};
    struct follow_mark mark;
    bool there = listings_get(w->listings, &args, &page, &mark);

    if (there) {
        assert_true(page.more);
        assert_true(span_eq(buf_span(&page.next), span_str("next")));
    }
    list_result_fini(&page);
    return there;
}

static void pages_of_a_listing_stay_until_something_in_it_changes(void **state)
{
    struct world *w = *state;

    put_page(w, "d/", "", 100);
    assert_false(has_page(w, "d/", "")); /* not live */
    follow_live(w->follow, true);
    put_page(w, "d/", "", 100);
    put_page(w, "d/", "next", 100);
    put_page(w, "e/", "", 100);
    assert_true(has_page(w, "d/", ""));
    assert_true(has_page(w, "d/", "next"));
    assert_false(has_page(w, "d/", "other"));
    change(w, "d/x", 1);
    assert_false(has_page(w, "d/", ""));
    assert_false(has_page(w, "d/", "next"));
    assert_true(has_page(w, "e/", ""));
    follow_wrote(w->follow, span_str("e/y"), ver(2));
    assert_false(has_page(w, "e/", ""));
    put_page(w, "", "", 100);
    put_page(w, "e/", "", 100);
    change(w, "e/", 3); /* its own times, say, which are shown above it */
    assert_false(has_page(w, "", ""));
    assert_true(has_page(w, "e/", ""));
    follow_live(w->follow, false);
    follow_live(w->follow, true);
    assert_false(has_page(w, "e/", ""));
}

static void a_page_under_way_during_a_change_is_not_kept(void **state)
{
    struct world *w = *state;
    struct list_args args = args_of("d/", "");
    struct list_result page = {.n = 0, .followed = true};
    struct follow_mark mark;

    follow_live(w->follow, true);
    mark = follow_mark_dir(w->follow, span_str("d/"));
    change(w, "d/x", 1);
    listings_put(w->listings, &args, &page, &mark);
    assert_false(has_page(w, "d/", ""));
}

/* A lookup or an open may see a version before the feed tells of it. */
static void a_change_that_was_read_before_it_was_told_drops_the_listing_that_lacks_it(void **state)
{
    struct world *w = *state;
    struct follow_mark mark;
    struct inode *in, *top;

    follow_live(w->follow, true);
    top = keep(w, "d/", 0);
    put_page(w, "d/", "", 100);
    mark = mark_of(w, "d/");
    in = keep(w, "d/x", 5);
    w->n_forget = 0;
    change(w, "d/x", 5);
    assert_false(has_page(w, "d/", ""));
    assert_false(follow_holds(w->follow, &mark));
    assert_false(is_kept(w, top));
    assert_true(is_kept(w, in)); /* which is as new */
    assert_int_equal(w->n_forget, 1);
    assert_int_equal(w->forgot, top->id);
}

static void a_directory_that_was_read_before_it_was_told_shows_above(void **state)
{
    struct world *w = *state;
    struct follow_mark mark;
    struct inode *in;

    follow_live(w->follow, true);
    put_page(w, "", "", 100);
    mark = follow_mark_dir(w->follow, span_str(""));
    in = keep(w, "d/", 5);
    w->n_forget = 0;
    change(w, "d/", 5);
    assert_false(has_page(w, "", ""));
    assert_false(follow_holds(w->follow, &mark));
    assert_true(is_kept(w, in));
    assert_int_equal(w->n_forget, 0);
}

static void the_listing_read_longest_ago_makes_room(void **state)
{
    struct world *w = *state;

    follow_live(w->follow, true);
    put_page(w, "a/", "", 1000);
    put_page(w, "b/", "", 1000);
    put_page(w, "c/", "", 1000);
    assert_true(has_page(w, "a/", ""));
    put_page(w, "d/", "", 1000);
    assert_false(has_page(w, "b/", ""));
    assert_true(has_page(w, "a/", ""));
    assert_true(has_page(w, "d/", ""));
    put_page(w, "e/", "", 8000); /* more than all may have */
    assert_false(has_page(w, "e/", ""));
    assert_true(has_page(w, "d/", ""));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fixture, unfixture)

static void of_what_a_listing_told_only_what_has_changed_since_no_longer_holds(void **state)
{
    struct world *w = *state;
    struct follow_mark listed, a, b;

    follow_live(w->follow, true);
    change(w, "d/a", 1);
    listed = mark_of(w, "d/");
    change(w, "d/b/x", 2);
    a = follow_mark_then(&listed, span_str("d/a"), span_str("d/a/"));
    b = follow_mark_then(&listed, span_str("d/b"), span_str("d/b/"));
    assert_false(follow_holds(w->follow, &listed));
    assert_true(follow_holds(w->follow, &a));
    assert_false(follow_holds(w->follow, &b));
    change(w, "d/a", 3);
    assert_false(follow_holds(w->follow, &a));
    a = follow_mark_then(&(struct follow_mark){0}, span_str("d/a"), span_str("d/a/"));
    assert_false(follow_holds(w->follow, &a)); /* the feed did not live */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_kept_without_a_live_feed),
        TEST(what_no_followed_node_said_is_not_kept),
        TEST(a_newer_version_drops_what_is_kept_and_of_a_directory_tells_the_kernel),
        TEST(what_is_kept_does_not_count_once_a_newer_version_was_seen),
        TEST(a_change_while_it_was_read_keeps_it_from_being_kept),
        TEST(a_read_older_than_what_was_told_before_is_not_kept),
        TEST(what_this_mount_wrote_is_kept_unless_others_wrote_later),
        TEST(own_deletes_are_known_by_their_version),
        TEST(of_what_a_listing_told_only_what_has_changed_since_no_longer_holds),
        TEST(a_change_reaches_up_to_the_first_directory_with_a_marker),
        TEST(a_directory_that_comes_to_hide_a_file_drops_it),
        TEST(a_file_read_while_a_directory_came_to_hide_it_is_not_kept),
        TEST(a_file_that_comes_to_be_hidden_by_a_directory_is_looked_for_in_it),
        TEST(pieces_of_long_names_are_not_kept),
        TEST(what_was_kept_under_an_old_key_does_not_count_under_a_new_one),
        TEST(pages_are_of_one_version_only_when_nothing_was_mixed_in),
        TEST(pages_of_a_listing_stay_until_something_in_it_changes),
        TEST(a_page_under_way_during_a_change_is_not_kept),
        TEST(a_change_that_was_read_before_it_was_told_drops_the_listing_that_lacks_it),
        TEST(a_directory_that_was_read_before_it_was_told_shows_above),
        TEST(the_listing_read_longest_ago_makes_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
