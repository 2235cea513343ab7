-- C14, C15: move the lease end of a held run.
-- KEYS: state live   ARGV: field token lease   Returns '1|now' or '0|now'.
local now = now_ms()
local run = held(KEYS[1], ARGV[1], ARGV[2])
if not run then return '0|' .. int(now) end
run.ends = now + tonumber(ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], pack(run))
local _, space = split(ARGV[1])
redis.call('ZADD', KEYS[2], alive_until(run, space), ARGV[1])
return '1|' .. int(now)
