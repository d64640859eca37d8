/* nearest.c - the edit distance between two names. */
#include "common/nearest.h"

#include <string.h>

size_t nearest_distance(const char *a, const char *b)
{
    size_t row[NEAREST_LEN_MAX + 1], b_len = strnlen(b, NEAREST_LEN_MAX);

    for (size_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= NEAREST_LEN_MAX && a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[b_len];
}
