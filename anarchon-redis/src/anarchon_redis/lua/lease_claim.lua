-- One claim.
-- KEYS, ARGV: as above   Returns its answer.
return decide(0, 0)
