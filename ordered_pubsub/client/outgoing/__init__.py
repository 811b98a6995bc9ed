"""The way of an event out: `publisher` collects, has it numbered, and gives it to the broker."""
