"""The tables of a broker: no I/O, no clock, no tasks. Time comes as an argument."""
