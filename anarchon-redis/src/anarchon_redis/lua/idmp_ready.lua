-- KEYS: runs   ARGV: duration_s keys   Returns what the stream remembers: seconds, keys.
set_up(KEYS[1], ARGV[1], ARGV[2])
local facts, found = redis.call('XINFO', 'STREAM', KEYS[1]), {}
for place = 1, #facts, 2 do found[facts[place]] = facts[place + 1] end
return {found['idmp-duration'] or 0, found['idmp-maxsize'] or 0}
