/* base64.c - RFC 4648 base64. */
#include "common/base64.h"

#include <errno.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(struct buf *out, struct span bytes)
{
    for (size_t i = 0; i < bytes.len; i += 3) {
        size_t left = bytes.len - i;
        uint32_t w = (uint32_t)bytes.data[i] << 16 |
                     (left > 1 ? (uint32_t)bytes.data[i + 1] << 8 : 0) |
                     (left > 2 ? bytes.data[i + 2] : 0);
        char quad[4] = {alphabet[w >> 18], alphabet[w >> 12 & 63], alphabet[w >> 6 & 63],
                        alphabet[w & 63]};

        if (left < 3)
            quad[3] = '=';
        if (left < 2)
            quad[2] = '=';
        buf_add(out, quad, 4);
    }
}

static int digit(uint8_t c)
{
    const char *p;

    if (c == '-')
        c = '+';
    if (c == '_')
        c = '/';
    p = c == 0 ? NULL : strchr(alphabet, c);
    return p == NULL ? -1 : (int)(p - alphabet);
}

int base64_decode(struct buf *out, struct span text)
{
    size_t start = out->len;
    uint32_t w = 0;
    unsigned bits = 0;

    for (int pad = 0; pad < 2 && text.len > 0 && text.data[text.len - 1] == '='; pad++)
        text.len--;
    if (text.len % 4 == 1)
        return -EINVAL;
    for (size_t i = 0; i < text.len; i++) {
        int d = digit(text.data[i]);

        if (d < 0) {
            out->len = start;
            return -EINVAL;
        }
        w = w << 6 | (uint32_t)d;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            buf_u8(out, (uint8_t)(w >> bits));
        }
    }
    return 0;
}
