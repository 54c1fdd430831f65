"""A publish call on its way in: checked column by column, made idempotent, encoded into blocks."""
