/*
 * make_seeds.c - make_seeds DIR writes what each fuzz target starts from into DIR/TARGET/: messages
 * and records made by the real encoders, texts that are right or nearly so, and short rows of
 * choices.
 *
 * What fuzzing has found is in tests/fuzz/corpus/, the wrong cluster.json files in tests/golden/.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "common/message.h"
#include "tests/fuzz/grammar.h"

static const char *dir;

static void save(const char *target, unsigned i, struct span bytes)
{
    char path[4096];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", dir, target);
    CLAIM(mkdir(path, 0777) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof path, "%s/%s/seed-%02u", dir, target, i);
    f = fopen(path, "wb");
    CLAIM(f != NULL && fwrite(bytes.data, 1, bytes.len, f) == bytes.len && fclose(f) == 0);
}

/* --- records and messages --------------------------------------------------------------------- */

/* Choices for the grammar that differ from seed to seed. */
static struct input choices(unsigned i, uint8_t bytes[256])
{
    for (unsigned k = 0; k < 256; k++)
        bytes[k] = (uint8_t)(k < 2 ? i : (i * 37 + k * 11) >> 2);
    return (struct input){bytes, 256};
}

static void make_records(void)
{
    struct span key = grammar_key(2);

    for (unsigned i = 0; i < 16; i++) {
        uint8_t bytes[256];
        struct input in = choices(i, bytes);
        struct made made = {0};
        struct buf out = {0};
        struct record r;

        grammar_record(&in, (struct ballot){i, i & 1}, &made, &r);
        buf_u8(&out, i & 1);
        buf_u8(&out, (uint8_t)key.len);
        buf_add_span(&out, key);
        record_encode(&out, key, &r);
        save("record", i, buf_span(&out));
        made_fini(&made);
        buf_fini(&out);
    }
}

/* All kinds of requests and answers: the first choice is the kind. */
static void make_messages(void)
{
    struct span key = grammar_key(2);

    for (unsigned i = 0; i < 24; i++) {
        uint8_t bytes[256];
        struct input in = choices(i, bytes);
        struct made made = {0};
        struct buf out = {0};
        struct message m;
        struct answer a;

        buf_u8(&out, 1);
        if (i < 12) {
            buf_u8(&out, 0);
            buf_u8(&out, 0);
            grammar_request(&in, 7, &made, &m);
            message_encode(&out, &m);
        } else {
            buf_u8(&out, 1);
            buf_u8(&out, (uint8_t)key.len);
            buf_add_span(&out, key);
            grammar_answer(&in, 0, 1000, &made, &a);
            answer_encode(&out, key, &a);
            buf_add_span(&out, buf_span(&made.bytes));
        }
        save("message", i, buf_span(&out));
        made_fini(&made);
        buf_fini(&out);
    }
}

static void make_entries(void)
{
    for (unsigned i = 0; i < 4; i++) {
        uint8_t bytes[256];
        struct input in = choices(i + 3, bytes);
        struct buf out = {0};

        buf_u8(&out, 1);
        buf_u8(&out, 2);
        buf_u8(&out, 0);
        (void)grammar_entries(&in, &out);
        save("message", 24 + i, buf_span(&out));
        buf_fini(&out);
    }
}

/* --- texts ------------------------------------------------------------------------------------ */

/* Each with the bytes before it that say what it is. */
static const struct {
    const char *target;
    const char *bytes;
    size_t len;
} texts[] = {
#define TEXT(target, s)                                                                            \
    {                                                                                              \
        target, s, sizeof(s) - 1                                                                   \
    }
    TEXT("names", "\0a/b//c/../.x%\xff y+?"),
    TEXT("names", "\0/"),
    TEXT("names", "\0%00key/%2500+/%2E/dir/"),
    TEXT("names", "\1a%2Fb/%2e%2E/%c3%a4+%zz"),
    TEXT("names", "\2%00/%2E/%2E%2E/%00key"),
    TEXT("names", "\2a/%2500key/%25252E"),
    TEXT("names", "\0.kvfs/%2Ekvfs"),
    TEXT("names", "\2%2Ekvfs/%252Ekvfs"),
    TEXT("names", "\2%252Ekvfs/.kvfs"),
    TEXT("names", "\3\3\0a/bc/d"),
    TEXT("lines",
         "{\"position\":\"9f3c-12\",\"key\":\"a/\\u00e4\",\"version\":\"1-2\",\"kind\":\"put\"}"),
    TEXT("lines", "{\"key_base64\":\"/w==\",\"on\":true,\"n\":7}"),
    TEXT("query", "\0prefix=a%2Fb&delimiter=/&limit=10&start_after="),
    TEXT("query", "\0prefix_base64=YS9i&start_after_base64=_-8="),
    TEXT("query", "\0&&prefix&prefix=x&unknown=1"),
    TEXT("query", "\1any\0bytes\xff"),
    TEXT("query", "\2YW55AGJ5dGVz/w=="),
    TEXT("query", "\2-_"),
#define ABOUT "\0\12\0\0\0\0\0\0\0\0\0\144\247\263\266\340\15"
    TEXT("conditions", ABOUT "*\n\n\n\n\nbytes=0-4"),
    TEXT("conditions", ABOUT "\"0000000000000007-0000000000000009\", W/\"x\"\n*\n\n\n\nbytes=-3"),
    TEXT("conditions", ABOUT "\n\nSun, 06 Nov 1994 08:49:37 GMT\nSunday, 06-Nov-94 08:49:37 GMT"),
    TEXT("conditions", ABOUT "\n\n\nSun Nov  6 08:49:37 1994\n\"0000000000000007-0000000000000009\""
                             "\nbytes=4-18446744073709551615"),
    TEXT("conditions", "\1" ABOUT "\nW/\"a\",\n\n\nx\nbytes=1-2,4-5"),
    TEXT("framing", "\0Host: x\r\nContent-Length: 5\r\n\r\n"),
    TEXT("framing", "\0Host: x\nTransfer-Encoding: chunked\n\n"),
    TEXT("framing", "\1Content-Length: 18446744073709551614\r\nA: b\r\n c\r\n\r\n"),
    TEXT("framing",
         "\0Host: x\r\nContent-Length: 5\0006\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
    /* rows of choices: see step() of each */
    TEXT("replica", ""),
    TEXT("replica", "\0\1\0\0\2\6\0\0\0\2\0\0\2\6\0\2\1\0\3\11\0\0\0\0\0\1\2\1\0"),
    TEXT("replica", "\1\2\0\0\2\11\0\1\1\0\5\7\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17\20"),
    TEXT("replica", "\0\4\100\0\2\1\5\0\0\0\0\3\1\1\0\5\1\0\0\0\0"),
    TEXT("client", "\0\0\0\0\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\0\0\5\0\0\0\0\0"),
    TEXT("client", "\1\0\0\0\2\100\0\0\3\0\0\100\0\0\100\4\0\0\0\0\0\5\0\2\120\0\0"),
    TEXT("client", "\2\1\0\0\2\100\0\0\3\0\0\200\0\0\200\4\0\0\0\0\0\5\0\2\220\0\0"),
    TEXT("client", "\0\0\0\0\2\241\242\0\1\0\0\0\243\244\2\0\0\0\0\0\0\6\0\0\0\0"),
    TEXT("listing", "\0\0\30\30\30\30\30\30\30\30\0"),
    TEXT("listing", "\1\0\30\31\0\12\24\7\30\30\1\100\0\0\0\0\0"),
    TEXT("listing", "\2\1\30\30\30\31\31\0\12\24\7\11\1\3\200\200\200\200\5\0\0\2\0\0\3\4"),
};

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_seeds DIR\n");
        return 2;
    }
    dir = argv[1];
    CLAIM(mkdir(dir, 0777) == 0 || errno == EEXIST);
    make_records();
    make_messages();
    make_entries();
    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++)
        save(texts[i].target, 50 + i, span_of(texts[i].bytes, texts[i].len));
    return 0;
}
