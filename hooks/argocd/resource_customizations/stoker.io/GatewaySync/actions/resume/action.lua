-- Removes the annotation that pause wrote. A spec.paused is changed where the manifest is kept.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
local notes = obj.metadata.annotations

notes["stoker.io/paused"] = nil
if next(notes) == nil then
  notes["stoker.io/paused"] = "false" -- Lua's empty table is a list, for which Argo CD would keep the annotations as they were
end

return obj
