-- May one depart? Pause, live permits and spacing are decided and counted in one step.

local SOON = 5

local function in_flight()
  return redis.call('ZCARD', PERMITS)
end

local function limit_here()
  return math.min(state.limit, bounds.ceiling)
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
  if in_flight() + ahead >= limit_here() then
    -- If a lease lapses, nobody tells; so ask then, at the latest.
    local first = redis.call('ZRANGE', PERMITS, 0, 0, 'WITHSCORES')
    local lapse = first[2] and tonumber(first[2]) - now + SOON or bounds.wait
    return queue_up(id, lapse, 'limit')
  end
  local free_at = state.not_before
  if state.departed_at > 0 then
    free_at = math.max(free_at, state.departed_at + bounds.spacing)
  end
  if bounds.rate > 0 then
    free_at = math.max(free_at, state.tat - (bounds.burst - 1) * bounds.rate)
  end
  if free_at <= now then
    return grant(id)
  end
  return queue_up(id, free_at - now + ahead * math.max(bounds.spacing, bounds.rate), 'spacing')
end

-- Tell those whose turn it is. Who waits for a time knows it already.
local function wake_first(prefix)
  local free = limit_here() - in_flight()
  if free <= 0 or state.pause_until > now or state.not_before > now then
    return
  end
  for _, id in ipairs(redis.call('ZRANGE', QUEUE, 0, free - 1)) do
    redis.call('PUBLISH', prefix .. string.match(id, '^(.*):'), said.host)
  end
end
