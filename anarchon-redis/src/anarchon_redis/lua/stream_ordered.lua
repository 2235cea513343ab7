-- Strategy stream-id, where XADD alone cannot answer: it was refused, or the slot's time must be judged first. C1-C4, C9.
-- KEYS: runs   ARGV: field token instance max_late keep entries_max
local field, token = ARGV[1], ARGV[2]
local now = now_ms()
local entry = redis.call('XRANGE', KEYS[1], field .. '-0', field .. '-0')[1]
if entry then return decided(entry[2][6], token, now, entry[2][8]) end
local outcome, left = timely(field, now, tonumber(ARGV[4]))
if outcome then return answer(outcome, now, left) end
local added = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[6], field .. '-0', 'slot', field, 'space', '', 'token', token, 'instance', ARGV[3],
  'at', int(now), 'keep', ARGV[5])
if type(added) == 'table' and added.err then
  -- A later slot is claimed and this one never ran: missed, not lost (limits.ordered).
  if string.find(added.err, 'equal or smaller', 1, true) then return answer('late', now) end
  return added
end
return answer('won', now)
