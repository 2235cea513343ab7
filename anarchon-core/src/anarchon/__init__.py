"""Leaderless distributed cron: every instance claims every slot, exactly one wins."""
