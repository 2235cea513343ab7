-- C19: won claims and how they ended, newest entry first.
-- KEYS: runs ends   ARGV: newest id, count   Returns for each: id, end or '', fields.
local found, fields = {}, {}
local entries = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])
for place, entry in ipairs(entries) do fields[place] = entry[2][1] == 'slot' and field_of(entry[2]) or '' end
if #entries == 0 then return found end
for place, text in ipairs(redis.call('HMGET', KEYS[2], unpack(fields))) do
  found[place] = {entries[place][1], text or '', entries[place][2]}
end
return found
