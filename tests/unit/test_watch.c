/* test_watch.c - a store that is of no use as it is is told of, once. */
#include "node/watch.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/list.h"

struct fake {
    struct store store;
    int probed, damage;
    bool is_stuck;
    unsigned n_tended, n_told;
};

static int fake_probe(struct store *s)
{
    return container_of(s, struct fake, store)->probed;
}

static int fake_damage(struct store *s, struct err *why)
{
    (void)why;
    return container_of(s, struct fake, store)->damage;
}

static bool fake_stuck(struct store *s)
{
    return container_of(s, struct fake, store)->is_stuck;
}

static void fake_tend(struct store *s)
{
    container_of(s, struct fake, store)->n_tended++;
}

static const struct store_ops ops = {
    .probe = fake_probe, .tend = fake_tend, .damage = fake_damage, .stuck = fake_stuck};

static void tell(void *arg)
{
    ((struct fake *)arg)->n_told++;
}

/* As often as the store was told of when the first probe was done. */
static unsigned n_told(struct fake *f)
{
    struct watch *w;

    f->store.ops = &ops;
    assert_int_equal(watch_new(&f->store, clock_real(), tell, f, &w), 0);
    assert_int_equal(watch_state(w), f->damage < 0 ? f->damage : f->probed);
    watch_free(w);
    assert_true(f->n_tended >= 1);
    return f->n_told;
}

static void a_store_that_works_is_only_tended(void **state)
{
    struct fake f = {0};

    (void)state;
    assert_int_equal(n_told(&f), 0);
}

static void a_full_disk_alone_is_not_told_of(void **state)
{
    struct fake f = {.probed = -ENOSPC};

    (void)state;
    assert_int_equal(n_told(&f), 0);
}

static void a_stuck_store_is_told_of(void **state)
{
    struct fake f = {.probed = -ENOSPC, .is_stuck = true};

    (void)state;
    assert_int_equal(n_told(&f), 1);
}

static void a_damaged_store_is_told_of(void **state)
{
    struct fake f = {.damage = -EBADMSG};

    (void)state;
    assert_int_equal(n_told(&f), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_that_works_is_only_tended),
        cmocka_unit_test(a_full_disk_alone_is_not_told_of),
        cmocka_unit_test(a_stuck_store_is_told_of),
        cmocka_unit_test(a_damaged_store_is_told_of),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
