-- The strategies that only decide who is first. Keys of a job, all in one hash slot:
--   runs   stream: one entry a won claim: slot space token instance at keep; it is the history as well
--   ends   hash: field <slot>[:<space>] -> status|time|error, trimmed with the stream
-- No time is ever printed by `..`: Lua would round what has more than 14 digits.
-- The server takes an entry's ID from a clock that it may have read before TIME.
local SLACK = 1000
local PAGE = 100
local PAGES_MAX = 300
local TRIM_MAX = 50

local function int(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function split(field)
  local slot, space = string.match(field, '^(-?%d+):?(.*)$')
  return slot, space
end

local function field_of(values)
  if values[1] ~= 'slot' then return '' end -- not ours
  return values[4] == '' and values[2] or values[2] .. ':' .. values[4]
end

local function after(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return ms .. '-' .. int(seq + 1)
end

-- The first entry of a run at or after a stream ID: its ID, token and instance.
local function find(stream, field, start)
  local slot, space = split(field)
  local page = 8
  for _ = 1, PAGES_MAX do
    local entries = redis.call('XRANGE', stream, start, '+', 'COUNT', page)
    for _, entry in ipairs(entries) do
      local values = entry[2]
      if values[1] == 'slot' and values[2] == slot and values[4] == space then return entry[1], values[6], values[8] end
    end
    if #entries < page then return nil end
    start, page = after(entries[#entries][1]), PAGE
  end
  error('more than ' .. PAGES_MAX * PAGE .. ' entries to read: shorten the window') -- C5: unknown, never a guess
end

-- C6, C20: drop the oldest entries beyond `keep` that nobody can ask for any more, with their ends.
local function trim(stream, ends, keep, before)
  local excess = redis.call('XLEN', stream) - keep
  if excess <= 0 then return end
  local ids, fields = {}, {}
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+', 'COUNT', math.min(excess, TRIM_MAX))) do
    if tonumber(string.match(entry[1], '^%d+')) >= before then break end
    ids[#ids + 1] = entry[1]
    fields[#fields + 1] = field_of(entry[2])
  end
  if #ids == 0 then return end
  redis.call('XDEL', stream, unpack(ids))
  redis.call('HDEL', ends, unpack(fields))
end

local function timely(field, now, max_late) -- C9: judged before anything is written; manual runs and notes have no time
  local slot, space = split(field)
  if space ~= '' then return nil end
  if slot - now > 0 then return 'early', int(slot - now) end
  if now - slot > max_late then return 'late' end
  return nil
end

local function answer(outcome, now, left, winner)
  local head = outcome .. '|' .. int(now) .. (outcome == 'won' and '|1|0' or '|0|0')
  if not left and not winner then return head end
  return {head, left or '', '', winner or '', ''}
end

local function decided(token, mine, now, winner) -- C4: the token that holds the run is told so again
  if token == mine then return answer('won', now) end
  return answer('lost', now, nil, winner)
end
