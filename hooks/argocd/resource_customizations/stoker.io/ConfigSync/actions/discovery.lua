-- The actions that the menu of a ConfigSync offers. Their scripts are those of a GatewaySync, because both have the same annotations.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj = map(obj)
local commit = map(map(obj.status).rollback).commit
local paused = map(map(obj.metadata).annotations)["stoker.io/paused"] == "true"

return {
  ["force-sync"] = {displayName = "Sync now", iconClass = "fa fa-fw fa-sync", disabled = false},
  ["pause"] = {displayName = "Pause", iconClass = "fa fa-fw fa-pause-circle", disabled = paused or map(obj.spec).paused == true},
  ["resume"] = {displayName = "Resume", iconClass = "fa fa-fw fa-play-circle", disabled = not paused},
  ["rollback"] = {displayName = "Roll back to the last good commit", iconClass = "fa fa-fw fa-history", disabled = type(commit) ~= "string" or commit == ""},
}
