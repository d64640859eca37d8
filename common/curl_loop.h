/*
 * curl_loop.h - libcurl's multi handle on a loop: its sockets, its timer, and what all transfers of
 * the transport have in common. For transport_http.c and streams.c, the users of libcurl.
 */
#ifndef KVFS_COMMON_CURL_LOOP_H
#define KVFS_COMMON_CURL_LOOP_H

#include <curl/curl.h>

#include "common/loop.h"
#include "common/sockets.h"

struct curl_loop {
    CURLM *multi;
    struct loop loop;
    struct sockets sockets;
    struct timer timer; /* curl's */
};

/* The owner of an easy handle: told when what it does has ended, on the loop. */
struct transfer {
    void (*ended)(struct transfer *t, CURLcode code);
    struct curl_loop *curl; /* set by curl_loop_prepare() */
    int open_err; /* why there was no socket, -EMFILE, ...; 0 when it begins, by its owner */
};

/* clock must outlive it. 0 or -errno. */
int curl_loop_init(struct curl_loop *c, struct clock *clock, unsigned connections_kept);
/* When no easy handle is in it any more. After a failed init, too. */
void curl_loop_fini(struct curl_loop *c);

/* Sets what all transfers have in common; url is copied. */
CURLcode curl_loop_prepare(struct curl_loop *c, CURL *easy, struct transfer *t, const char *url);
/* What the code of a transfer that ended comes to; own: why its write callback failed. */
int curl_loop_error(CURL *easy, const struct transfer *t, CURLcode code, int own);

#endif
