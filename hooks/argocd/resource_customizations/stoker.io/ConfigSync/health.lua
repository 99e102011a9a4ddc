-- Health of a ConfigSync: status.outcome, if it describes the current spec and request.
-- Argo CD waits while the health is Progressing or Suspended, and fails a sync when it is Degraded.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

local function text(value)
  if type(value) == "string" then return value end
  return ""
end

obj = map(obj)
local meta, status = map(obj.metadata), map(obj.status)
local notes, outcome = map(meta.annotations), map(status.outcome)

-- The annotations that the outcome depends on, joined as api/v1alpha1/desiredref/object.go joins them.
local request = ""
for _, name in ipairs({"requested-ref", "requested-over", "requested-unless", "requested-commit", "requested-at", "paused", "retry"}) do
  local value = text(notes["stoker.io/" .. name])
  if value ~= "" then request = request .. name .. "=" .. value .. "\n" end
end
if #request > 4096 then request = "too long" end

if outcome.phase == nil then
  return {status = "Progressing", message = "no run yet: enable stoker config run, or use stoker config apply"}
end
if status.observedGeneration ~= meta.generation then
  return {status = "Progressing", message = "no run of the current spec yet"}
end
if text(status.observedRequest) ~= request then
  return {status = "Progressing", message = "no run of the current request yet"}
end

local health = {Succeeded = "Healthy", Paused = "Healthy", Held = "Suspended", Failed = "Degraded"}
local said = {Synced = true, Progressing = true, Paused = true, DryRun = true} -- the message says it in words
local reason, message = text(outcome.reason), text(outcome.message)
if reason ~= "" and not said[reason] then message = reason .. ": " .. message end
return {status = health[text(outcome.phase)] or "Progressing", message = message}
