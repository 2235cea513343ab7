-- C1-C4, C6, C9-C13: decide a claim; an existing run first, then the rules for a fresh one.
-- A claim's keys: state runs live final
-- Its arguments: field token instance attempt_limit lease max_late exclusive keep history_size history_ttl info
-- Its answer: 'outcome|now|attempt|new job', or that with left, blocking run, winner and replaced info.
local now = now_ms()
local at = int(now)
local state, runs, live, final
local field, token, instance, attempt_limit, lease, max_late, exclusive, keep, history_size, history_ttl, info
local cells, slot_text, slot, space
local attempt, left, other, winner, born

local function prune() -- C6, C20: what is final, old and beyond the limits, oldest slot first; the floor rises with it
  local size, ttl = history_size, history_ttl
  local ended = redis.call('ZCARD', final)
  if ended + LIVE_COUNTED <= size and not ttl then return end
  -- A run that is not final counts for the size and is passed over. Where there are many of them only final runs are
  -- counted, so that rather more is kept than less, at the same cost.
  local others = redis.call('ZRANGE', live, 0, LIVE_COUNTED - 1)
  if #others == LIVE_COUNTED then others = {} end
  for place, other_field in ipairs(others) do others[place] = tonumber((split(other_field))) end
  local surplus = ended + #others - size
  if surplus <= 0 and not ttl then return end
  local most = ttl and PRUNE_MAX or math.min(surplus, PRUNE_MAX)
  local gone, floor = {}, nil
  for place, head in ipairs(redis.call('ZRANGE', final, 0, most - 1)) do
    local old = tonumber((split(head)))
    if old >= now - keep then break end
    local expired = ttl and now - old > ttl
    local older = place - 1
    for _, other_slot in ipairs(others) do
      if other_slot < old then older = older + 1 end
    end
    if not expired and older >= surplus then break end
    gone[place], floor = head, old
  end
  if not floor then return end
  for _, text in ipairs(redis.call('HMGET', state, unpack(gone))) do
    local ids = {}
    if text then -- else a server that evicts has dropped the state: only the index is left
      for id in string.gmatch(read(text).ids, '[^,]+') do ids[#ids + 1] = id end
      redis.call('XDEL', runs, unpack(ids))
    end
  end
  redis.call('HDEL', state, unpack(gone))
  redis.call('ZREM', final, unpack(gone))
  if not cells[3] or floor > tonumber(cells[3]) then redis.call('HSET', state, '@floor', int(floor)) end
end

local function grant(run)
  run.status, run.token, run.instance = 'running', token, instance
  run.ends = now + lease
  attempt = run.attempt
  record(runs, slot_text, space, run, 'running', token, at, '')
  redis.call('ZADD', live, alive_until(run, space), field)
  if cells[2] then
    redis.call('HSET', state, field, pack(run))
  else
    born = true
    redis.call('HSET', state, field, pack(run), '@first', at, '@info', info)
  end
end

local function again(run)
  winner = run.instance
  if run.status == 'running' and run.token == token then -- C4
    run.ends, attempt, winner = now + lease, run.attempt, ''
    redis.call('HSET', state, field, pack(run))
    redis.call('ZADD', live, alive_until(run, space), field)
    return 'won'
  end
  if FINAL[run.status] then return 'done' end -- C18
  local crashed = run.status == 'running'
  if now < run.ends or (crashed and now == run.ends) then
    left = int(run.ends - now)
    return 'running'
  end
  if run.attempt - run.uncounted >= attempt_limit or run.attempt >= ATTEMPTS_MAX then -- C13
    if crashed then record(runs, slot_text, space, run, 'interrupted', run.token, at, '') end
    run.status, run.token = 'interrupted', ''
    redis.call('HSET', state, field, pack(run))
    redis.call('ZREM', live, field)
    redis.call('ZADD', final, slot_text, field)
    return 'done'
  end
  if crashed then record(runs, slot_text, space, run, 'lost', run.token, at, '') end
  run.attempt = run.attempt + 1 -- C8, C12
  prune()
  grant(run)
  return 'won'
end

local function fresh()
  if cells[3] and slot <= tonumber(cells[3]) then return 'late' end -- C6
  if space ~= 'n' and string.sub(space, 1, 1) ~= 'm' then
    if slot > now then -- C9
      left = int(slot - now)
      return 'early'
    end
    if now - slot > max_late then return 'late' end
    if cells[4] then return 'paused' end -- C10
  end
  if exclusive and space ~= 'n' then -- C10, in O(log n): only the run that is alive the longest can answer
    for _ = 1, LIVE_COUNTED do
      other = redis.call('ZREVRANGEBYSCORE', live, '+inf', at, 'LIMIT', 0, 1)[1] or ''
      if other == '' then break end
      local text = redis.call('HGET', state, other)
      if text then
        local blocker = read(text)
        left, winner = int(blocker.ends - now), blocker.instance
        return 'overlap'
      end
      redis.call('ZREM', live, other) -- a server that evicts has dropped the state: only the index is left
      other = ''
    end
  end
  grant({attempt = 1, uncounted = 0, finisher = '', ids = ''})
  prune()
  return 'won'
end

local function decide(key, argument)
  state, runs, live, final = KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4]
  field, token, instance = ARGV[argument + 1], ARGV[argument + 2], ARGV[argument + 3]
  attempt_limit, lease, max_late = tonumber(ARGV[argument + 4]), tonumber(ARGV[argument + 5]), tonumber(ARGV[argument + 6])
  exclusive, keep = ARGV[argument + 7] == '1', tonumber(ARGV[argument + 8])
  history_size, history_ttl, info = tonumber(ARGV[argument + 9]), tonumber(ARGV[argument + 10]), ARGV[argument + 11]
  cells = redis.call('HMGET', state, field, '@first', '@floor', '@paused', '@info')
  slot_text, space = split(field)
  slot = tonumber(slot_text)
  attempt, left, other, winner, born = 0, '', '', '', false
  local outcome = cells[1] and again(read(cells[1])) or fresh()
  local replaced = ''
  if cells[2] and info ~= '' and cells[5] ~= info then
    replaced = cells[5] or ''
    redis.call('HSET', state, '@info', info)
  end
  local head = outcome .. '|' .. at .. '|' .. attempt .. '|' .. (born and '1' or '0')
  if left == '' and other == '' and winner == '' and replaced == '' then return head end
  return {head, left, other, winner, replaced}
end
