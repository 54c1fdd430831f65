"""Delivery: from ready messages and stream logs to the consumers who have credit for them."""
