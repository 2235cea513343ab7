-- Make the stream and configure what it remembers in one step, once. On a stream that lives nothing is ever changed:
-- XCFGSET with another value forgets every key, and every remembered slot could be won again (C6).
local function set_up(stream, duration_s, keys)
  if redis.call('EXISTS', stream) == 1 then return end
  redis.call('XGROUP', 'CREATE', stream, '_', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', stream, '_')
  redis.call('XCFGSET', stream, 'IDMP-DURATION', duration_s, 'IDMP-MAXSIZE', keys)
end
