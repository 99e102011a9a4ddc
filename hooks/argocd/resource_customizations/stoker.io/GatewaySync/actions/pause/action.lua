-- Pauses by annotation, which Argo CD does not revert.
local function map(value)
  if type(value) == "table" then return value end
  return {}
end

obj.metadata = map(obj.metadata)
obj.metadata.annotations = map(obj.metadata.annotations)
local notes = obj.metadata.annotations

notes["stoker.io/paused"] = "true"

return obj
