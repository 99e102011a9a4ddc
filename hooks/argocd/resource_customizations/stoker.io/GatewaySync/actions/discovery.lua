-- The actions that the menu of a GatewaySync offers.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj = map(obj)
local paused = map(map(obj.metadata).annotations)["stoker.io/paused"] == "true"
local commit, retry = map(map(obj.status).rollback).commit, map(obj.status).retry
local approval = map(map(obj.status).approval)

return {
  ["approve"] = {displayName = "Approve the waiting stage", iconClass = "fa fa-fw fa-check-circle", disabled = type(approval.stage) ~= "string" or approval.stage == ""},
  ["approve-window"] = {displayName = "Deliver outside the maintenance windows", iconClass = "fa fa-fw fa-clock", disabled = approval.window ~= true},
  ["force-sync"] = {displayName = "Force sync", iconClass = "fa fa-fw fa-sync", disabled = false},
  ["pause"] = {displayName = "Pause", iconClass = "fa fa-fw fa-pause-circle", disabled = paused or map(obj.spec).paused == true},
  ["resume"] = {displayName = "Resume", iconClass = "fa fa-fw fa-play-circle", disabled = not paused},
  ["retry"] = {displayName = "Retry the commit", iconClass = "fa fa-fw fa-redo", disabled = type(retry) ~= "string" or retry == ""},
  ["rollback"] = {displayName = "Roll back to the last good commit", iconClass = "fa fa-fw fa-history", disabled = type(commit) ~= "string" or commit == ""},
}
