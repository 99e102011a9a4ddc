-- Health of a GatewaySync: status.outcome, if it describes the current spec and request and an agent confirms it.
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

local function waiting(message)
  return {status = "Progressing", message = message}
end
if outcome.phase == nil then return waiting("WaitingForLead: neither an agent nor the injector has read this GatewaySync yet") end
if status.observedGeneration ~= meta.generation then return waiting("WaitingForLead: the lead has not read the current spec yet") end
if text(status.observedRequest) ~= request then return waiting("WaitingForLead: the lead has not read the request yet") end

-- Times of this form sort as text. With a second argument, os.date gives local time only, whatever the format says.
local os = require("os")
local zone = os.time() - os.time(os.date("!*t"))
local function utc(seconds) return os.date("%Y-%m-%dT%H:%M:%SZ", os.time() - zone + seconds) end
local confirmed = text(status.confirmedAt)
local unsure = outcome.phase == "Succeeded" or
  (tonumber(outcome.total) or 0) > 0 and outcome.phase ~= "Failed" and outcome.reason ~= "AgentsAway"
if unsure and (confirmed < utc(-300) or confirmed > utc(300)) then
  return waiting("AgentsAway: no agent confirms this status: look for pods without an agent and for a missing injector (stoker check)")
end

local health = {Succeeded = "Healthy", Paused = "Healthy", Held = "Suspended", Failed = "Degraded"}
local said = {Synced = true, Progressing = true, RolledBack = true, Paused = true} -- the message says it in words
local reason, message = text(outcome.reason), text(outcome.message)
if reason ~= "" and not said[reason] then message = reason .. ": " .. message end
-- If the GatewaySync is in an early sync wave, Argo CD creates the gateways in a later one.
if outcome.reason == "NoGateways" then return {status = "Healthy", message = message} end
return {status = health[text(outcome.phase)] or "Progressing", message = message}
