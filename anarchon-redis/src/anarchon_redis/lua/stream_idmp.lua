-- Strategy idmp: the server remembers the first entry of (producer, slot) and answers repeats with its ID. C1-C4, C6, C9.
-- KEYS: runs ends   ARGV: field token instance max_late keep duration_s keys producer
local field, token, duration = ARGV[1], ARGV[2], tonumber(ARGV[6]) * 1000
local slot, space = split(field)
local now = now_ms()
local outcome, left = timely(field, now, tonumber(ARGV[4]))
if outcome then
  -- A repeated question comes late and is still answered from the record.
  local id, holder, winner = find(KEYS[1], field, int(math.max(0, tonumber(slot) - SLACK)))
  if id then return decided(holder, token, now, winner) end
  return answer(outcome, now, left)
end

local function add()
  return redis.call('XADD', KEYS[1], 'NOMKSTREAM', 'IDMP', ARGV[8], field, '*', 'slot', slot, 'space', space,
    'token', token, 'instance', ARGV[3], 'at', int(now), 'keep', ARGV[5])
end

local id = add()
if not id then
  set_up(KEYS[1], ARGV[6], ARGV[7])
  id = add()
end
local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
if not entry then return answer('lost', now) end -- remembered, its entry deleted: whoever it was, it is not for us
trim(KEYS[1], KEYS[2], tonumber(ARGV[5]), now - duration - SLACK)
return decided(entry[2][6], token, now, entry[2][8])
