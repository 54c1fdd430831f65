"""Redrives that run at backends, as the gateway that started them knows them."""
