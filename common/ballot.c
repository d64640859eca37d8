/* ballot.c - a ballot as text and back. */
#include "common/ballot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HEX_DIGITS 16

_Static_assert(BALLOT_TEXT_LEN == 2 * HEX_DIGITS + 2, "two numbers, a dash and the NUL");

void ballot_text(struct ballot b, char out[BALLOT_TEXT_LEN])
{
    (void)snprintf(out, BALLOT_TEXT_LEN, "%016" PRIx64 "-%016" PRIx64, b.counter, b.proposer);
}

/*
 * Sixteen digits and no NUL. An ETag is compared as text, so each ballot has one spelling: lower
 * case.
 */
static int hex16(const char *s, uint64_t *out)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t v = 0;

    for (int i = 0; i < HEX_DIGITS; i++) {
        const char *d = strchr(digits, s[i]);

        if (d == NULL)
            return -EINVAL;
        v = v << 4 | (uint64_t)(d - digits);
    }
    *out = v;
    return 0;
}

int ballot_parse(const char *s, struct ballot *out)
{
    struct ballot b;

    if (strlen(s) != BALLOT_TEXT_LEN - 1 || s[HEX_DIGITS] != '-')
        return -EINVAL;
    if (hex16(s, &b.counter) != 0 || hex16(s + HEX_DIGITS + 1, &b.proposer) != 0)
        return -EINVAL;
    *out = b;
    return 0;
}
