/*
 * redis_scripts.h - the changes that Redis makes in one step: Lua, run by its server. What the keys
 * in Redis are is told here (and, for people, in docs/redis.md).
 *
 *   kvfs:owner    hash: whose data it is, and which kvnode uses it         redis_claim.h
 *   kvfs:session  the word that every access must name: TOKEN:NUMBER       redis_pool.h
 *   kvfs:seq      how many changes there were
 *   kvfs:keys     sorted set of all keys, every score 0: they stand in byte order
 *   kvfs:r:KEY    where the value is (below), then the record
 *   kvfs:v:KEY    an inline value
 *   kvfs:f:ID:N   the N-th piece of a large value
 *   kvfs:loose    set of the (ID, size) of large values that no record names
 *   kvfs:state    hash of the node's own values
 *
 *   where:  0            nowhere: tombstones and empty values
 *           1            in kvfs:v:KEY, changed in the same step as the record
 *           2, ID, SIZE  in pieces: 32 and 16 hexadecimal digits
 *
 * The first write of a script decides whether it may be run when Redis has no memory left (see
 * maxmemory): a value's is refused, and a record's that is new or larger than before; what needs no
 * memory begins by deleting something.
 */
#ifndef KVFS_NODE_REDIS_SCRIPTS_H
#define KVFS_NODE_REDIS_SCRIPTS_H

/*
 * All but TAKE and AGAIN are given the session and the lowest seq that may be; where Redis has
 * another they change nothing and answer the error KVFSSESSION. All answer a list whose first item
 * is seq.
 */
enum redis_script {
    /*
     * key, where, record, mode, value, "1": the record before is wanted. Mode: "value" inline,
     * "file", "none", or "keep" what is there (KVFSNONE: nothing is; KVFSDAMAGED). Answers also:
     * how many keys it added; the record before with its where, or as much as where may take.
     */
    REDIS_PUT,
    REDIS_DROP,   /* key. Answers as PUT: keys removed; what was there */
    REDIS_PIECE,  /* (ID, size), number, bytes */
    REDIS_FORGET, /* (ID, size), first piece, one behind the last, "1": these are the last */
    REDIS_PAGE, /* "[" and where to begin, how many, bytes; answers "1" if more, key, record ... */
    REDIS_STATE_GET, /* name; answers the value, or nothing */
    REDIS_STATE_PUT, /* name, value */
    REDIS_PROBE,
    REDIS_TAKE, /* token before, session, then fields of kvfs:owner. KVFSMOVED; answers n of keys */
    REDIS_AGAIN, /* token, number, lowest seq, run_id. KVFSLOST, KVFSTAKEN; answers n of keys */
};
#define REDIS_N_SCRIPTS (REDIS_AGAIN + 1u)
#define REDIS_WHERE_MAX 49u

const char *redis_script_text(enum redis_script script);

#endif
