/* redis_scripts.c - the changes that Redis makes in one step. */
#include "node/redis_scripts.h"

/* A session that is no longer, or data that was there and is not. */
#define GUARD                                                                                      \
    "local seq = tonumber(redis.call('GET', 'kvfs:seq') or '0')\n"                                 \
    "if redis.call('GET', 'kvfs:session') ~= ARGV[1] or seq < tonumber(ARGV[2]) then\n"            \
    "  return {err = 'KVFSSESSION'}\n"                                                             \
    "end\n"
#define COUNTED "redis.call('INCR', 'kvfs:seq')"
/* Not refused for want of memory, and so is nothing after it. */
#define LIGHT "redis.call('DEL', 'kvfs:none')\n"

/* By how much a record may grow without memory: by the id of one more operation, say. */
#define SLACK "16"

static const char put[] =
    GUARD "local key, where, mode = ARGV[3], ARGV[4], ARGV[6]\n"
          "local r, v = 'kvfs:r:' .. key, 'kvfs:v:' .. key\n"
          "local old = redis.call('GET', r)\n"
          "local place = old and string.byte(old)\n"
          "if mode == 'keep' then\n"
          "  if not old then return {err = 'KVFSNONE'} end\n"
          "  local len = place == 2 and 49 or 1\n"
          "  if not place or place > 2 or #old <= len then return {err = 'KVFSDAMAGED'} end\n"
          "  where = string.sub(old, 1, len)\n"
          "end\n"
          "local new = where .. ARGV[5]\n"
          "if mode ~= 'value' and old and #new <= #old + " SLACK " then\n"
          "  " LIGHT "end\n"
          "redis.call('SET', r, new)\n"
          "if mode == 'value' then\n"
          "  redis.call('SET', v, ARGV[7])\n"
          "elseif mode ~= 'keep' then\n"
          "  redis.call('DEL', v)\n"
          "end\n"
          "local added = redis.call('ZADD', 'kvfs:keys', 0, key)\n"
          "if mode == 'file' then redis.call('SREM', 'kvfs:loose', string.sub(where, 2)) end\n"
          "if place == 2 and #old >= 49 and mode ~= 'keep' then\n"
          "  redis.call('SADD', 'kvfs:loose', string.sub(old, 2, 49))\n"
          "end\n"
          "if old and ARGV[8] ~= '1' then old = string.sub(old, 1, 49) end\n"
          "return {" COUNTED ", added, old}\n";

static const char drop[] = GUARD "local r = 'kvfs:r:' .. ARGV[3]\n"
                                 "local old = redis.call('GET', r)\n"
                                 "redis.call('DEL', r, 'kvfs:v:' .. ARGV[3])\n"
                                 "local removed = redis.call('ZREM', 'kvfs:keys', ARGV[3])\n"
                                 "if old and string.byte(old) == 2 and #old >= 49 then\n"
                                 "  redis.call('SADD', 'kvfs:loose', string.sub(old, 2, 49))\n"
                                 "end\n"
                                 "if old and ARGV[4] ~= '1' then old = string.sub(old, 1, 49) end\n"
                                 "return {" COUNTED ", removed, old}\n";

static const char piece[] =
    GUARD "redis.call('SET', 'kvfs:f:' .. string.sub(ARGV[3], 1, 32) .. ':' .. ARGV[4], ARGV[5])\n"
          "redis.call('SADD', 'kvfs:loose', ARGV[3])\n"
          "return {" COUNTED "}\n";

/* A record that names it has taken it out of the set. */
static const char forget[] =
    GUARD "if redis.call('SISMEMBER', 'kvfs:loose', ARGV[3]) == 0 then return {seq} end\n"
          "local f = 'kvfs:f:' .. string.sub(ARGV[3], 1, 32) .. ':'\n"
          "for i = tonumber(ARGV[4]), tonumber(ARGV[5]) - 1 do redis.call('UNLINK', f .. i) end\n"
          "if ARGV[6] == '1' then redis.call('SREM', 'kvfs:loose', ARGV[3]) end\n"
          "return {" COUNTED "}\n";

static const char page[] =
    GUARD "local keys = redis.call('ZRANGEBYLEX', 'kvfs:keys', ARGV[3], '+', 'LIMIT', 0, ARGV[4])\n"
          "local left = tonumber(ARGV[5])\n"
          "local out = {seq, #keys == tonumber(ARGV[4]) and '1' or '0'}\n"
          "for i, key in ipairs(keys) do\n"
          "  if left <= 0 then out[2] = '1' break end\n"
          "  local record = redis.call('GET', 'kvfs:r:' .. key) or ''\n"
          "  left = left - #key - #record\n"
          "  out[2 * i + 1] = key\n"
          "  out[2 * i + 2] = record\n"
          "end\n"
          "return out\n";

static const char state_get[] = GUARD "return {seq, redis.call('HGET', 'kvfs:state', ARGV[3])}\n";

static const char state_put[] = GUARD LIGHT "redis.call('HSET', 'kvfs:state', ARGV[3], ARGV[4])\n"
                                            "return {" COUNTED "}\n";

static const char probe[] = GUARD LIGHT "return {" COUNTED "}\n";

static const char take[] =
    "if (redis.call('HGET', 'kvfs:owner', 'token') or '') ~= ARGV[1] then\n"
    "  return {err = 'KVFSMOVED'}\n"
    "end\n"
    "redis.call('DEL', 'kvfs:session')\n"
    "for i = 3, #ARGV, 2 do redis.call('HSET', 'kvfs:owner', ARGV[i], ARGV[i + 1]) end\n"
    "redis.call('SET', 'kvfs:session', ARGV[2])\n"
    "return {" COUNTED ", redis.call('ZCARD', 'kvfs:keys')}\n";

/* What is late of an earlier try does not take the session back. */
static const char again[] =
    "local token = redis.call('HGET', 'kvfs:owner', 'token')\n"
    "local seq = tonumber(redis.call('GET', 'kvfs:seq') or '0')\n"
    "local session = redis.call('GET', 'kvfs:session')\n"
    "if not token or not session then return {err = 'KVFSLOST all of it'} end\n"
    "if token ~= ARGV[1] then return {err = 'KVFSTAKEN'} end\n"
    "if seq < tonumber(ARGV[3]) then\n"
    "  redis.pcall('DEL', 'kvfs:none')\n" /* as LIGHT; it may be read-only */
    "  redis.pcall('HSET', 'kvfs:owner', 'lost', '1')\n"
    "  return {err = 'KVFSLOST the last ' .. (tonumber(ARGV[3]) - seq) .. ' changes'}\n"
    "end\n"
    "if tonumber(string.match(session, ':(%d+)$') or '0') >= tonumber(ARGV[2]) then\n"
    "  return {err = 'KVFSLATE'}\n"
    "end\n"
    "redis.call('DEL', 'kvfs:session')\n"
    "redis.call('HSET', 'kvfs:owner', 'run_id', ARGV[4])\n"
    "redis.call('SET', 'kvfs:session', token .. ':' .. ARGV[2])\n"
    "return {" COUNTED ", redis.call('ZCARD', 'kvfs:keys')}\n";

const char *redis_script_text(enum redis_script script)
{
    static const char *const texts[] = {
        [REDIS_PUT] = put,
        [REDIS_DROP] = drop,
        [REDIS_PIECE] = piece,
        [REDIS_FORGET] = forget,
        [REDIS_PAGE] = page,
        [REDIS_STATE_GET] = state_get,
        [REDIS_STATE_PUT] = state_put,
        [REDIS_PROBE] = probe,
        [REDIS_TAKE] = take,
        [REDIS_AGAIN] = again,
    };

    return texts[script];
}
