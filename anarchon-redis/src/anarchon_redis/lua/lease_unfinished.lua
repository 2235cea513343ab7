-- K12: every run that is not final.
-- KEYS: state live   ARGV: most   Returns now, then field and run in turn.
local found = {int(now_ms())}
local fields = redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1)
for first = 1, #fields, 500 do
  local some = {unpack(fields, first, math.min(first + 499, #fields))}
  for place, text in ipairs(redis.call('HMGET', KEYS[1], unpack(some))) do
    found[#found + 1] = some[place]
    found[#found + 1] = text
  end
end
return found
