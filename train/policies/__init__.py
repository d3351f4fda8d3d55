"""Policies: encoder, trunk and heads behind one interface."""
