-- May one depart? Pause, live permits and spacing are decided and counted in one step.

local SOON = 5

local function in_flight()
  return redis.call('ZCARD', PERMITS)
end

local function limit_here()
  return math.min(state.limit, bounds.ceiling)
end

-- When time allows the next departure, places or not.
local function free_at()
  local at = state.not_before
  if state.departed_at > 0 then
    at = math.max(at, state.departed_at + bounds.spacing)
  end
  if bounds.rate > 0 then
    at = math.max(at, state.tat - (bounds.burst - 1) * bounds.rate)
  end
  return at
end

local function grant(id)
  redis.call('ZREM', QUEUE, id)
  redis.call('ZREM', ALIVE, id)
  redis.call('ZADD', PERMITS, now + bounds.lease, id)
  state.departed_at = now
  state.not_before = now + bounds.spacing
  if bounds.rate > 0 then
    -- GCRA (ITU-T I.371): the theoretical arrival time moves on by one interval.
    state.tat = math.max(state.tat, now) + bounds.rate
  end
  return { in_flight = in_flight() }
end

-- First come, first served over all workers. Who falls silent leaves the queue.
local function queue_up(id, after, why)
  if not redis.call('ZSCORE', QUEUE, id) then
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')
    redis.call('ZADD', QUEUE, (tonumber(last[2]) or 0) + 1, id)
  end
  redis.call('ZADD', ALIVE, now + 2 * bounds.wait, id)
  return { after = math.min(after, bounds.wait), why = why }
end

local function admit(id)
  if redis.call('ZSCORE', PERMITS, id) then
    -- The answer to an earlier call was lost.
    redis.call('ZADD', PERMITS, now + bounds.lease, id)
    return { in_flight = in_flight() }
  end
  local ahead = redis.call('ZRANK', QUEUE, id) or redis.call('ZCARD', QUEUE)
  if state.pause_until > now then
    return queue_up(id, state.pause_until - now, 'pause')
  end
  local at, step = free_at(), math.max(bounds.spacing, bounds.rate)
  local places = limit_here() - in_flight()
  -- Nobody passes a first one that waits only for its time: it would wait for ever.
  local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
  if at <= now and ahead < places and (ahead == 0 or state.turn ~= first) then
    return grant(id)
  end
  if at > now or (step > 0 and places > 0) then
    if ahead == 0 then
      state.turn = id
    end
    -- Also where no place is free yet: nobody tells when it is only time that is missing.
    return queue_up(id, math.max(0, at - now) + ahead * step, 'spacing')
  end
  -- If a lease lapses, nobody tells; so ask then, at the latest.
  local lapsing = redis.call('ZRANGE', PERMITS, 0, 0, 'WITHSCORES')
  local lapse = lapsing[2] and tonumber(lapsing[2]) - now + SOON or bounds.wait
  return queue_up(id, lapse, 'limit')
end

-- Tell those whose turn it is, and when, if there is more room than before. Those who have just
-- asked know it already.
local function wake_first(asked, prefix)
  local free = state.limit - in_flight()
  if not opened or free <= 0 then
    return
  end
  local knows = {}
  for _, id in ipairs(asked) do
    knows[id] = true
  end
  local after, step = math.max(0, state.pause_until - now, free_at() - now), math.max(bounds.spacing, bounds.rate)
  for place, id in ipairs(redis.call('ZRANGE', QUEUE, 0, free - 1)) do
    if not knows[id] then
      local word = string.format('%.1f %s', after + (place - 1) * step, said.host)
      redis.call('PUBLISH', prefix .. string.match(id, '^(.*):'), word)
    end
  end
end
