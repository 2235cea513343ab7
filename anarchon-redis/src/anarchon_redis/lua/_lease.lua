-- The lease strategy. Keys of a job, all in one hash slot:
--   state  hash: field <slot>[:<space>] -> run, and @first @paused @resumed @floor @info of the job
--   runs   stream: the history; one entry when an attempt is won and one when it ends
--   live   sorted set: every run that is not final, by the last millisecond at which it is alive (a note: 0)
--   final  sorted set: every run that is final, by slot
-- A run: status|attempt|uncounted|token|end|finisher|entry ids|instance. Times go through `int`: Lua's own printing rounds
-- what has more than 14 digits.
local ATTEMPTS_MAX = 1000
local PRUNE_MAX = 50
local LIVE_COUNTED = 32
local FINAL = {success = true, failed = true, timeout = true, interrupted = true, skipped = true, missed = true}

local function int(number)
  return string.format('%.0f', number)
end

local function now_ms() -- C9, C11: the store's clock, read inside the step
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function split(field)
  local slot, space = string.match(field, '^(-?%d+):?(.*)$')
  return slot, space
end

local function read(text)
  local run = {}
  local attempt, uncounted, ends
  run.status, attempt, uncounted, run.token, ends, run.finisher, run.ids, run.instance =
    string.match(text, '^([^|]*)|(%d+)|(%d+)|([^|]*)|(-?%d+)|([^|]*)|([^|]*)|(.*)$')
  run.attempt, run.uncounted, run.ends = tonumber(attempt), tonumber(uncounted), tonumber(ends)
  return run
end

local function pack(run)
  return run.status .. '|' .. run.attempt .. '|' .. run.uncounted .. '|' .. run.token .. '|' .. int(run.ends)
    .. '|' .. run.finisher .. '|' .. run.ids .. '|' .. run.instance
end

local function alive_until(run, space)
  if space == 'n' then return '0' end -- a note never stands in anybody's way
  -- C11: a lease that ends now is alive; C16: a release delay that ends now has passed.
  return int(run.status == 'running' and run.ends or run.ends - 1)
end

-- C19: write how an attempt stands to the history; `at` is the time as text.
local function record(stream, slot, space, run, status, token, at, error)
  local id = redis.call('XADD', stream, '*', 'slot', slot, 'space', space, 'attempt', run.attempt, 'token', token,
    'instance', run.instance, 'status', status, 'at', at, 'error', error)
  run.ids = run.ids == '' and id or run.ids .. ',' .. id
end

local function held(state, field, token) -- C15
  local text = redis.call('HGET', state, field)
  local run = text and read(text)
  if run and run.token == token and run.status == 'running' then return run, run end
  return nil, run
end
