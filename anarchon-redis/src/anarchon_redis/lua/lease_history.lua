-- C19: the entries of some runs, newest slot first.
-- KEYS: state runs slots   ARGV: since offset most   Returns, for each run, a list of its entries' fields.
local found = {}
local fields = redis.call('ZREVRANGEBYSCORE', KEYS[3], '+inf', ARGV[1], 'LIMIT', ARGV[2], ARGV[3])
if #fields == 0 then return found end
for _, text in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
  local entries = {}
  for id in string.gmatch(read(text).ids, '[^,]+') do
    local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
    if entry then entries[#entries + 1] = entry[2] end
  end
  found[#found + 1] = entries
end
return found
