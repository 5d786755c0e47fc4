"""Value types, ids, named limits, the error taxonomy and executable invariants."""
