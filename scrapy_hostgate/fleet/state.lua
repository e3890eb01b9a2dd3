-- The shared state of one host. Times are milliseconds of Redis's own clock: the clocks of workers
-- may be minutes apart, and only differences of this one are ever told to them.
local STATE, PERMITS, QUEUE, ALIVE, WORKERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local said = cjson.decode(ARGV[1])
local bounds = said.bounds

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 100) / 10

local state = {}
-- Whether somebody who waits may have more room now than before.
local opened = false
local NUMBERS = { 'epoch', 'limit', 'refusals', 'incidents', 'pause_until', 'tat', 'departed_at', 'not_before' }

local function load_state()
  local stored = redis.call('HGETALL', STATE)
  for i = 1, #stored, 2 do
    state[stored[i]] = stored[i + 1]
  end
  if #stored == 0 then
    -- A new host; or Redis has lost its memory, and the first worker to come says what it was.
    local known = said.known
    local anew = known.epoch == 0
    state.epoch, state.limit = known.epoch, anew and bounds.start or known.limit
    state.reason, state.lesson = known.reason, known.lesson
  end
  for _, name in ipairs(NUMBERS) do
    state[name] = tonumber(state[name]) or 0
  end
  if state.epoch == 0 then
    -- Nobody has decided anything yet, so everybody goes by the own start.
    state.limit = bounds.start
  end
  if said.known.reason ~= '' and said.known.epoch > state.epoch then
    -- Redis has lost its memory, and somebody who knew less, or nothing, came first.
    if said.known.limit <= state.limit then
      state.limit, state.reason, state.lesson = said.known.limit, said.known.reason, said.known.lesson
    end
    state.epoch = said.known.epoch
  end
end

local function forget_lapsed()
  redis.call('ZREMRANGEBYSCORE', WORKERS, '-inf', now)
  local silent = redis.call('ZRANGEBYSCORE', ALIVE, '-inf', now)
  opened = redis.call('ZREMRANGEBYSCORE', PERMITS, '-inf', now) + #silent > 0
  for _, ask in ipairs(silent) do
    redis.call('ZREM', QUEUE, ask)
    redis.call('ZREM', ALIVE, ask)
  end
end

local function store_state()
  local fields = {
    'host', said.host, 'reason', state.reason, 'lesson', state.lesson, 'turn', state.turn or '',
  }
  -- For people only: workers go by their own.
  for _, name in ipairs({ 'start', 'ceiling' }) do
    fields[#fields + 1] = name
    fields[#fields + 1] = bounds[name]
  end
  for _, name in ipairs(NUMBERS) do
    fields[#fields + 1] = name
    fields[#fields + 1] = string.format('%.1f', state[name])
  end
  redis.call('HSET', STATE, unpack(fields))
  -- All of them, each time: a sorted set that became empty was deleted, and its expiry with it.
  local ttl = bounds.ttl + math.max(0, state.pause_until - now)
  for _, key in ipairs({ STATE, PERMITS, QUEUE, ALIVE, WORKERS }) do
    redis.call('PEXPIRE', key, math.ceil(ttl))
  end
end
