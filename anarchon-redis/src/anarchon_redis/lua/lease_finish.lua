-- C15, C18, C19: end a held run for good; the token that ended it is told so again.
-- KEYS: state runs live final   ARGV: field token status error   Returns '1|now' or '0|now'.
local now = now_ms()
local run, known = held(KEYS[1], ARGV[1], ARGV[2])
if not run then
  return (known and known.finisher == ARGV[2] and '1|' or '0|') .. int(now)
end
local slot, space = split(ARGV[1])
record(KEYS[2], slot, space, run, ARGV[3], ARGV[2], int(now), ARGV[4])
run.status, run.token, run.finisher = ARGV[3], '', ARGV[2]
redis.call('HSET', KEYS[1], ARGV[1], pack(run))
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZADD', KEYS[4], slot, ARGV[1])
return '1|' .. int(now)
