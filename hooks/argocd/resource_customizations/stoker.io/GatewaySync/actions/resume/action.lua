-- Takes back what pause wrote. spec.paused is the repository's to change.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

local gs = map(obj)
gs.metadata = map(gs.metadata)
gs.metadata.annotations = map(gs.metadata.annotations)
local notes = gs.metadata.annotations

notes["stoker.io/paused"] = nil
if next(notes) == nil then
  notes["stoker.io/paused"] = "false" -- Lua's empty table is a list, for which Argo CD would keep the annotations as they were
end

return obj
