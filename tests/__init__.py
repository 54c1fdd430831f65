"""Tests, by what they need: unit, model, contracts, integration, crash, browser, docs; bench measures."""
