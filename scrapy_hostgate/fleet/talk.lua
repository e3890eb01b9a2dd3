-- One whole exchange; see protocol.py, whose Talk and Told these are.
load_state()
forget_lapsed()
local lost = renew(said.held)
release(said.ended)
redis.call('ZADD', WORKERS, now + 2 * bounds.lease, said.worker)
state.refusals = state.refusals + said.refusals
pause(said.pause)
local changed = change(said.change)
local answers = {}
for i, id in ipairs(said.asks) do
  answers[i] = admit(id)
end
wake_first(said.asks, ARGV[2])
store_state()
return cjson.encode({
  now = now,
  epoch = state.epoch,
  limit = state.limit,
  reason = state.reason,
  lesson = state.lesson,
  pause = math.max(0, state.pause_until - now),
  in_flight = in_flight(),
  workers = redis.call('ZCARD', WORKERS),
  incidents = state.incidents,
  changed = changed,
  lost = lost,
  answers = answers,
})
