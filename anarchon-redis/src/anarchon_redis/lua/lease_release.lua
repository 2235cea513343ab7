-- C15, C16: take the token off a held run.
-- KEYS: state runs live   ARGV: field token delay counted error   Returns '1|now' or '0|now'.
local now = now_ms()
local run = held(KEYS[1], ARGV[1], ARGV[2])
if not run then return '0|' .. int(now) end
local counted = ARGV[4] == '1'
local slot, space = split(ARGV[1])
record(KEYS[2], slot, space, run, counted and 'failed' or 'handed_over', ARGV[2], int(now), ARGV[5])
run.status, run.token, run.ends = 'handed_over', '', now + tonumber(ARGV[3])
if not counted then run.uncounted = run.uncounted + 1 end
redis.call('HSET', KEYS[1], ARGV[1], pack(run))
redis.call('ZADD', KEYS[3], alive_until(run, space), ARGV[1])
return '1|' .. int(now)
