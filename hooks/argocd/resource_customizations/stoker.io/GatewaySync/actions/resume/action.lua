-- Removes the annotation that the action pause added. It does not change spec.paused, which belongs to the manifest.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
local notes = obj.metadata.annotations

notes["stoker.io/paused"] = nil
if next(notes) == nil then
  notes["stoker.io/paused"] = "false" -- Argo CD reads an empty Lua table as a list and would keep the old annotations
end

return obj
