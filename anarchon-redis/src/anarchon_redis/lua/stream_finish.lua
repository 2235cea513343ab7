-- C18, C19: write down how a run ended, if this token holds it; the first end stays.
-- KEYS: runs ends   ARGV: field token status error start ordered keep_least   Returns 1 or 0.
local now = now_ms()
local id, holder
if ARGV[6] == '1' then
  local entry = redis.call('XRANGE', KEYS[1], ARGV[5], ARGV[5])[1]
  if entry then id, holder = entry[1], entry[2][6] end
else
  id, holder = find(KEYS[1], ARGV[1], ARGV[5])
end
if not id or holder ~= ARGV[2] then return 0 end
redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[3] .. '|' .. int(now) .. '|' .. ARGV[4])
if ARGV[6] == '1' then -- the ID remembers the slot for ever, so only the history needs the entry
  local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  local keep = tonumber(newest[2][12]) or 0
  trim(KEYS[1], KEYS[2], math.max(keep, tonumber(ARGV[7])), math.huge)
end
return 1
