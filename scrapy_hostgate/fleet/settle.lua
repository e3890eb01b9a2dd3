-- What has happened at a worker: downloads that go on, that ended, pauses, and a decision.

-- Leases of downloads in flight are renewed, and written anew where they are missing: after a lapse
-- or a restart the count must still tell the truth. How many were missing is the answer.
local function renew(held)
  local lost = 0
  for _, id in ipairs(held) do
    if not redis.call('ZSCORE', PERMITS, id) then
      lost = lost + 1
    end
    redis.call('ZADD', PERMITS, now + bounds.lease, id)
    redis.call('ZREM', QUEUE, id)
    redis.call('ZREM', ALIVE, id)
  end
  return lost
end

local function release(ended)
  for _, id in ipairs(ended) do
    if redis.call('ZREM', PERMITS, id) + redis.call('ZREM', QUEUE, id) > 0 then
      opened = true
    end
    redis.call('ZREM', ALIVE, id)
  end
end

-- Never shortens a pause.
local function pause(wait)
  local begins, ends = math.max(now, state.pause_until), now + wait
  if wait > 0 and ends > begins then
    if state.tat > 0 then
      -- No tokens accrue in a pause.
      state.tat = math.max(state.tat, begins) + ends - begins
    end
    state.pause_until = ends
  end
end

-- Compare and set on the epoch: of several workers that saw the same thing one is heard.
local function change(wanted)
  if not wanted or wanted.epoch ~= state.epoch then
    return false
  end
  state.epoch = state.epoch + 1
  opened = opened or wanted.limit > state.limit
  state.limit, state.reason, state.lesson = wanted.limit, wanted.reason, wanted.lesson
  if wanted.refused then
    state.incidents = state.incidents + 1
  end
  return true
end
