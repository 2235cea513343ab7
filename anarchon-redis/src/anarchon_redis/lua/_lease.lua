-- The lease strategy. Keys of a job, all in one hash slot:
--   state  hash: field <slot>[:<space>] -> run, and @first @paused @resumed @floor @info of the job
--   runs   stream: the history; one entry when an attempt is won and one when it ends
--   slots  sorted set: every run by slot; final: the runs that are final, by slot
--   live   sorted set: every run that is not final, by the last millisecond at which it is alive (a note: 0)
-- A run: status|attempt|uncounted|token|end|finisher|entry ids|instance. No time is ever printed by `..`: Lua would
-- round what has more than 14 digits.
local ATTEMPTS_MAX = 1000
local PRUNE_MAX = 50
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
  return run.status .. '|' .. int(run.attempt) .. '|' .. int(run.uncounted) .. '|' .. run.token .. '|' .. int(run.ends)
    .. '|' .. run.finisher .. '|' .. run.ids .. '|' .. run.instance
end

local function alive_until(run, space)
  if space == 'n' then return '0' end -- a note never stands in anybody's way
  -- C11: a lease that ends now is alive; C16: a release delay that ends now has passed.
  return int(run.status == 'running' and run.ends or run.ends - 1)
end

local function record(stream, field, run, status, token, now, error) -- C19
  local slot, space = split(field)
  local id = redis.call('XADD', stream, '*', 'slot', slot, 'space', space, 'attempt', int(run.attempt), 'token', token,
    'instance', run.instance, 'status', status, 'at', int(now), 'error', error)
  run.ids = run.ids == '' and id or run.ids .. ',' .. id
end

local function held(state, field, token) -- C15
  local text = redis.call('HGET', state, field)
  local run = text and read(text)
  if run and run.token == token and run.status == 'running' then return run, run end
  return nil, run
end
