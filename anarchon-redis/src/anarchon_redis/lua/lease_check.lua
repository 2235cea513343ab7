-- C17: look at runs; writes nothing.
-- KEYS: state   ARGV: field ...   Returns now and the runs as stored.
local views = redis.call('HMGET', KEYS[1], unpack(ARGV))
table.insert(views, 1, int(now_ms()))
return views
