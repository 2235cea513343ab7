-- C10: pause or resume a job; it need not have run yet. Repeating changes nothing.
-- KEYS: state   ARGV: paused   Returns now.
local now = int(now_ms())
redis.call('HSETNX', KEYS[1], '@first', now)
local paused = redis.call('HEXISTS', KEYS[1], '@paused') == 1
if ARGV[1] == '1' and not paused then
  redis.call('HSET', KEYS[1], '@paused', now)
elseif ARGV[1] == '0' and paused then
  redis.call('HDEL', KEYS[1], '@paused')
  redis.call('HSET', KEYS[1], '@resumed', now)
end
return now
