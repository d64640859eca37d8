/*
 * streams.h - the streams of transport.h over HTTP: GET requests whose answers go on. A part of
 * transport_http.c, for nobody else.
 */
#ifndef KVFS_COMMON_STREAMS_H
#define KVFS_COMMON_STREAMS_H

#include "common/curl_loop.h"
#include "common/transport.h"

struct streams {
    struct curl_loop *curl;
    struct list all;   /* alive */
    struct timer came; /* armed when bytes came that have not been handed on */
};

void streams_init(struct streams *ss, struct curl_loop *curl);
/* origin: "http://host:port". 0 or -ENOMEM: as the transport's. */
int streams_open(struct streams *ss, struct stream *s, const char *origin);
void streams_close(struct streams *ss, struct stream *s);
/* Ends all with -ECANCELED. */
void streams_fini(struct streams *ss);

#endif
