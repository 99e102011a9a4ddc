-- Health of a ConfigSync: its condition Ready, if it describes the current spec.
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
local ready, stalled = {}, false
for _, c in ipairs(map(status.conditions)) do
  c = map(c)
  if c.type == "Ready" then ready = c end
  if c.type == "Stalled" and c.status == "True" then stalled = true end
end

if ready.status == nil then
  return {status = "Progressing", message = "no run yet: enable stoker config run, or use stoker config apply"}
end
if status.observedGeneration ~= meta.generation then
  return {status = "Progressing", message = "no run of the current spec yet"}
end

local said = {Synced = true, Progressing = true, Paused = true, DryRun = true} -- the message says it in words
local reason, message = text(ready.reason), text(ready.message)
if reason ~= "" and not said[reason] then message = reason .. ": " .. message end
if ready.status == "True" or reason == "DryRun" then return {status = "Healthy", message = message} end

-- A user or a policy has to act first.
local held = {NotOwned = true, ApplyConflict = true, MassDeletion = true, Paused = true}
if held[reason] then return {status = "Suspended", message = message} end
if stalled then return {status = "Degraded", message = message} end
return {status = "Progressing", message = message}
