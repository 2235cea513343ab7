-- C19: the entries of some runs: of those that are not final, or of the final ones, newest slot first.
-- KEYS: state runs live final   ARGV: offset most since, where since is '' for the runs that are not final
-- Returns, for each run, a list of its entries' fields.
local found, fields = {}, nil
if ARGV[3] == '' then
  fields = redis.call('ZRANGE', KEYS[3], ARGV[1], ARGV[1] + ARGV[2] - 1)
else
  fields = redis.call('ZREVRANGEBYSCORE', KEYS[4], '+inf', ARGV[3], 'LIMIT', ARGV[1], ARGV[2])
end
if #fields == 0 then return found end
for _, text in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
  local entries = {}
  for id in string.gmatch(text and read(text).ids or '', '[^,]+') do
    local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
    if entry then entries[#entries + 1] = entry[2] end
  end
  found[#found + 1] = entries
end
return found
