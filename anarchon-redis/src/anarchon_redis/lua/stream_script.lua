-- Strategy script: look for the slot among the entries that can hold it, else append the claim. C1-C4, C6, C9.
-- KEYS: runs ends   ARGV: field token instance max_late keep window
local field, token = ARGV[1], ARGV[2]
local slot, space = split(field)
local now, window = now_ms(), tonumber(ARGV[6])
-- A slot is never claimed before its time, and IDs never go back: no entry of it is older than the slot itself. Manual
-- runs and notes have no such bound.
local start = now - window
if space == '' then start = math.max(start, tonumber(slot)) end
start = math.max(0, start - SLACK)
local id, holder, winner = find(KEYS[1], field, int(start))
if id then return decided(holder, token, now, winner) end
local outcome, left = timely(field, now, tonumber(ARGV[4]))
if outcome then return answer(outcome, now, left) end
trim(KEYS[1], KEYS[2], tonumber(ARGV[5]), now - window - SLACK)
redis.call('XADD', KEYS[1], '*', 'slot', slot, 'space', space, 'token', token, 'instance', ARGV[3], 'at', int(now),
  'keep', ARGV[5])
return answer('won', now)
