"""What happens because of the time: schedules, expiry, and who is woken when."""
