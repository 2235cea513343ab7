-- Several claims, each decided by itself (C3) and failing by itself: what one costs beside its reads and writes is paid once.
-- KEYS, ARGV: those of each claim in turn   Returns an answer or an error for each.
local answers = {}
for place = 1, #KEYS / 4 do
  local well, answer = pcall(decide, 4 * (place - 1), 11 * (place - 1))
  answers[place] = well and answer or {err = type(answer) == 'table' and answer.err or tostring(answer)}
end
return answers
